// Resizes int8 images. Where to look and with which weights stands in tables that the host made: every device
// does the same.
//
//   LINEAR 0   nearest: y = x[table.x of the row][table.x of the column]
//   LINEAR 1   y = ((dy2 dx2 x11 + dy2 dx1 x12) + dy1 dx2 x21) + dy1 dx1 x22, each step a rounded float32;
//              the fraction is cut off, or rounded half to even (EVEN)
//
// Memory    x, y: Int8x4 words in the layout of number LAYOUT, whose words hold four channels of one pixel.
//           table: for each row of y, then each column: (first, second, bits of the distance from the first,
//           from the second).
// Threads   one invocation writes one word.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
#if LINEAR
layout(constant_id = 2) const bool EVEN = false;
#endif

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer Table { ivec4 table[]; };
layout(set = 0, binding = 2) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint words;
  uint n, c, x_h, x_w, y_h, y_w;
  int shift;              // from the stored int8 to the number that it means: 0, or 128 for uint8
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "layout/any.glslh"
#if LINEAR
#include "exact_sum.glslh"
#endif

int pixel(uvec4 e, int h, int w) {
  return x[any_layout_word(LAYOUT, uvec4(e.xy, uint(h), uint(w)), uvec4(p.n, p.c, p.x_h, p.x_w))];
}

#if LINEAR
void add_term(inout vec4 value, Int8x4 word, int dy, int dx) {
  float weight = multiply(intBitsToFloat(dy), intBitsToFloat(dx));
  vec4 v = vec4(int8x4_unpack(word) + p.shift);
  [[unroll]] for (int i = 0; i < 4; i++) value[i] = sum(value[i], multiply(v[i], weight));
}

Int8x4 resized(uvec4 e, ivec4 row, ivec4 column) {
  vec4 value = vec4(0.0);
  add_term(value, pixel(e, row.x, column.x), row.w, column.w);
  add_term(value, pixel(e, row.x, column.y), row.w, column.z);
  add_term(value, pixel(e, row.y, column.x), row.z, column.w);
  add_term(value, pixel(e, row.y, column.y), row.z, column.z);
  ivec4 q = ivec4(EVEN ? roundEven(value) : trunc(value)) - p.shift;
  return int8x4_pack(clamp(q, ivec4(-128), ivec4(127)));
}
#else
Int8x4 resized(uvec4 e, ivec4 row, ivec4 column) { return pixel(e, row.x, column.x); }
#endif

void main() {
  uint word = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 e = any_layout_element(LAYOUT, word, 0u, uvec4(p.n, p.c, p.y_h, p.y_w));
  if (word < p.words && e.w < p.y_w && e.z < p.y_h && e.x < p.n)
    y[word] = resized(e, table[e.z], table[p.y_h + e.w]);
}
