// Resize int8 images. The host computes a table of positions and weights, so that all devices use the same
// positions and weights.
//
//   LINEAR 0   nearest: y = x[table.x of the row][table.x of the column]
//   LINEAR 1   y = ((dy2 dx2 x11 + dy2 dx1 x12) + dy1 dx2 x21) + dy1 dx1 x22, each operation rounded to
//              float32; the result is truncated, or rounded half to even (EVEN)
//   LINES      1-D data (N, C, 1, L), with the roundings of ONNX Runtime, which resizes them as volumes: each
//              of the two terms is added as a whole, but as two halves if n or c is the last index of its
//              axis, and as four quarters if both are
//   FIXED      weights are multiples of 2**-11: y = (t 2**11 + (b - t) dy + 2**21) >> 22,
//              t = x11 2**11 + (x12 - x11) dx, and b likewise in the lower row;
//              with AWAY, halves are rounded away from zero
//   REAL 1     the formula of LINEAR 1 for real numbers (x - x_zero) * x_scale; then y is quantized
//
// Memory    x: int8, read as words, or in kPackedInt8_16C as vectors; y: int8, written as vectors of pixels
//           (pixels.glslh). table: ivec4, an entry for each row of y, then one for each column: (first index,
//           second index, float32 bits of the distance from the first, bits of the distance from the second).
// Threads   one invocation writes one vector.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
#if LINEAR
layout(constant_id = 2) const bool EVEN = false;
layout(constant_id = 3) const bool LINES = false;
layout(constant_id = 4) const bool FIXED = false;
layout(constant_id = 5) const bool AWAY = false;
#endif

#if BLOCKED
#define Element ivec4
#else
#define Element int
#endif
layout(set = 0, binding = 0) readonly buffer X { Element x[]; };
layout(set = 0, binding = 1) readonly buffer Table { ivec4 table[]; };
layout(set = 0, binding = 2) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint vectors;
  uint n, c, x_h, x_w, y_h, y_w;
  int shift;              // real number = stored int8 + shift: 0 for int8, 128 for uint8
  float x_scale;          // this and all later constants: only for REAL
  int x_zero;
  float scale;
  int zero_point;
  float inverse, low, high, safe;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "pixels.glslh"
#if LINEAR
#include "exact_sum.glslh"
#endif
#if REAL
#include "quantized.glslh"
#endif

// Return the vector that holds a pixel (kPackedInt8_16C), or the pixel's word (kPackedInt8_4W4C).
Element pixel(Pixels at, int h, int w) {
  at.h = uint(h);
  at.w = uint(w);
  uint vector = vector_of(at, uvec4(p.n, p.c, p.x_h, p.x_w));
#if BLOCKED
  return x[vector];
#else
  return x[4u * vector + at.w % 4u];
#endif
}

#if LINEAR
void add_term(inout vec4 value, Int8x4 word, int dy, int dx) {
  float weight = multiply(intBitsToFloat(dy), intBitsToFloat(dx));
#if REAL
  vec4 v = vec4(int8x4_unpack(word) - p.x_zero);
  [[unroll]] for (int i = 0; i < 4; i++) v[i] = multiply(v[i], p.x_scale);
#else
  vec4 v = vec4(int8x4_unpack(word) + p.shift);
#endif
  [[unroll]] for (int i = 0; i < 4; i++) value[i] = sum(value[i], multiply(v[i], weight));
}

// The weights of a result add up to 2**22, so the shift of stored numbers (128 for uint8) needs no
// correction.
Int8x4 fixed_point(Int8x4 word11, Int8x4 word12, Int8x4 word21, Int8x4 word22, int dy, int dx) {
  ivec4 a = int8x4_unpack(word11), c = int8x4_unpack(word21);
  ivec4 top = (a << 11) + (int8x4_unpack(word12) - a) * dx;
  ivec4 low = (c << 11) + (int8x4_unpack(word22) - c) * dx;
  ivec4 total = (top << 11) + (low - top) * dy;
  if (AWAY) total += total >> 31;
  return int8x4_pack((total + (1 << 21)) >> 22);
}

// Compute one result of four channels. `channel` is the index of the first of them.
Int8x4 interpolated(Int8x4 word11, Int8x4 word12, Int8x4 word21, Int8x4 word22, ivec4 row, ivec4 column,
                    uint image, uint channel) {
  if (FIXED) return fixed_point(word11, word12, word21, word22, row.z, column.z);
  vec4 value = vec4(0.0);
  add_term(value, word11, row.w, column.w);
  add_term(value, word12, row.w, column.z);
  vec4 once = value;
  add_term(value, word21, row.z, column.w);
  add_term(value, word22, row.z, column.z);
  if (LINES) {
    vec4 twice = value;
    [[unroll]] for (int i = 0; i < 2; i++) {
      add_term(twice, word11, row.w, column.w);
      add_term(twice, word12, row.w, column.z);
    }
    bool last = image == p.n - 1u;
    [[unroll]] for (int i = 0; i < 4; i++) {
      bool both = channel + uint(i) == p.c - 1u;
      value[i] = last && both ? 0.5 * twice[i] : last || both ? value[i] : 2.0 * once[i];
    }
  }
#if REAL
  bool sure = true;
  Int8x4 result = quantized_word(floatBitsToUint(value), sure);
  return sure ? result : exact_word(floatBitsToUint(value));
#else
  ivec4 q = ivec4(EVEN ? roundEven(value) : trunc(value)) - p.shift;
  return int8x4_pack(clamp(q, ivec4(-128), ivec4(127)));
#endif
}

Element resized(Pixels at, ivec4 row, ivec4 column) {
  Element a = pixel(at, row.x, column.x), b = pixel(at, row.x, column.y), c = pixel(at, row.y, column.x),
          d = pixel(at, row.y, column.y);
#if BLOCKED
  ivec4 words;
  [[unroll]] for (int k = 0; k < 4; k++) 
    words[k] = interpolated(a[k], b[k], c[k], d[k], row, column, at.image, 16u * at.block + 4u * uint(k));
  return words;
#else
  return interpolated(a, b, c, d, row, column, at.image, 4u * at.block);
#endif
}
#else
Element resized(Pixels at, ivec4 row, ivec4 column) { return pixel(at, row.x, column.x); }
#endif

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.vectors) {
    Pixels at = pixels_of(i, uvec4(p.n, p.c, p.y_h, p.y_w));
    ivec4 row = table[at.h];
#if BLOCKED
    y[i] = resized(at, row, table[p.y_h + at.w]);
#else
    ivec4 words;
    [[unroll]] for (uint k = 0u; k < 4u; k++)
      words[k] = resized(at, row, table[p.y_h + min(at.w + k, p.y_w - 1u)]);
    y[i] = words;
#endif
  }
}
