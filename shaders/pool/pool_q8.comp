// Maximum or mean of a window sliding over int8 images.
//
//   KIND_MAX      y = max x
//   KIND_AVERAGE  y = saturate(round_half_even((sum / count) / y_scale + y_zero)), sum = sum of x_scale * (x
//                 - x_zero) in row-major order, every step a rounded float32. An integer sum and one float
//                 product decide unless the value lies farther than `safe` from an integer, so near to a tie
//                 that the order of roundings could matter: then the steps are done.
//
// Memory    x, y: Int8x4 words in the layout of number LAYOUT, whose words hold four channels of one pixel.
// Threads   one invocation writes one word: four channels of one output pixel.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define KIND_MAX 0
#define KIND_AVERAGE 1

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint words;
  uint n, c, x_h, x_w, y_h, y_w;
  uint kernel_h, kernel_w, stride_h, stride_w, pad_t, pad_l, dilation_h, dilation_w;
#if KIND == KIND_AVERAGE
  uint count;             // of every window, or 0: the elements inside the image
  int x_zero, y_zero;     // y_zero as the type of y has it; y_shift is what to subtract for the stored int8
  int y_shift, y_min, y_max;
  float x_scale, y_scale, ratio, safe;
#endif
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "layout/any.glslh"
#if KIND == KIND_AVERAGE
#define RARE_QUOTIENTS
#include "exact_sum.glslh"
#endif

// of the input's rows or columns under the window, in steps of the dilation
struct Span { uint first, last; };

Span under(uint out_index, uint stride, uint pad, uint kernel, uint dilation, uint size) {
  int first = int(out_index * stride) - int(pad);
  uint skipped = first < 0 ? (uint(-first) + dilation - 1u) / dilation : 0u;
  return Span(uint(first + int(skipped * dilation)),
      uint(min(first + int((kernel - 1u) * dilation), int(size) - 1) + 1));
}

ivec4 pixel(uvec4 e, uint h, uint w) {
  return int8x4_unpack(x[any_layout_word(LAYOUT, uvec4(e.x, e.y, h, w), uvec4(p.n, p.c, p.x_h, p.x_w))]);
}

#if KIND == KIND_AVERAGE
float mean_steps(float total, float count) {
  return sum(quotient(quotient(total, count), p.y_scale), float(p.y_zero));
}

ivec4 exact_mean(uvec4 e, Span rows, Span columns, float count) {
  vec4 total = vec4(0.0);
  for (uint h = rows.first; h < rows.last; h++) {
    for (uint w = columns.first; w < columns.last; w++) {
      vec4 centred = vec4(pixel(e, h, w) - p.x_zero);
      [[unroll]] for (int i = 0; i < 4; i++) total[i] = sum(total[i], multiply(centred[i], p.x_scale));
    }
  }
  vec4 q = vec4(0.0);
  [[dont_unroll]] for (int i = 0; i < 4; i++) {  // the lanes going round: this is rare, and its code long
    q = vec4(q.yzw, clamp(roundEven(mean_steps(total.x, count)), -512.0, 512.0));
    total = total.yzwx;
  }
  return ivec4(q) - p.y_shift;
}

ivec4 result(uvec4 e, Span rows, Span columns) {
  ivec4 total = ivec4(0);
  for (uint h = rows.first; h < rows.last; h++) {
    for (uint w = columns.first; w < columns.last; w++) total += pixel(e, h, w) - p.x_zero;
  }
  float count = float(p.count != 0u ? p.count : (rows.last - rows.first) * (columns.last - columns.first));
  vec4 value = vec4(total) * (p.ratio / count) + float(p.y_zero - p.y_shift);
  vec4 rounded = roundEven(value);
  ivec4 q = ivec4(clamp(rounded, vec4(-512.0), vec4(512.0)));
  if (any(greaterThan(abs(value - rounded), vec4(p.safe)))) q = exact_mean(e, rows, columns, count);
  return clamp(q, ivec4(p.y_min), ivec4(p.y_max));
}
#else
ivec4 result(uvec4 e, Span rows, Span columns) {
  ivec4 most = ivec4(-128);
  for (uint h = rows.first; h < rows.last; h += p.dilation_h) {
    for (uint w = columns.first; w < columns.last; w += p.dilation_w) most = max(most, pixel(e, h, w));
  }
  return most;
}
#endif

void main() {
  uint word = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 e = any_layout_element(LAYOUT, word, 0u, uvec4(p.n, p.c, p.y_h, p.y_w));
  if (word < p.words && e.w < p.y_w && e.z < p.y_h && e.x < p.n) {
    Span rows = under(e.z, p.stride_h, p.pad_t, p.kernel_h, p.dilation_h, p.x_h);
    Span columns = under(e.w, p.stride_w, p.pad_l, p.kernel_w, p.dilation_w, p.x_w);
    y[word] = int8x4_pack(result(e, rows, columns));
  }
}
