// y = saturate(round_half_even(x / scale) + zero_point): ONNX QuantizeLinear per tensor, exactly
// (quantize_pixels.comp). NaN becomes the lower bound, infinities saturate.
//
// Memory    x: float32, row-major, read as bits because a device may flush subnormal floats; y: Int8x4 words
//           in layout number LAYOUT; padding lanes get the zero point.
// Threads   one invocation writes one word.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint words;
  uint n, c, h, w;
  float scale;
  int zero_point;
  float inverse, low, high, safe;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "quantized.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

void main() {
  uint word = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 extent = uvec4(p.n, p.c, p.h, p.w), bits = uvec4(0u);
  [[unroll]] for (uint lane = 0u; lane < 4u; lane++) {
    uvec4 e = any_layout_element(LAYOUT, word, lane, extent);
    if (all(lessThan(e, extent))) bits[lane] = x[row_major(e, extent)];
  }
  bool sure = true;
  Int8x4 result = quantized_word(bits, sure);
  if (!sure) result = exact_word(bits);
  if (word < p.words) y[word] = result;
}
