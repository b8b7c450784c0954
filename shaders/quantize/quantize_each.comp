// Quantize or dequantize with a scale and a zero point for each element: ONNX QuantizeLinear and
// DequantizeLinear along an axis, or in blocks.
//   TO_Q8    y = saturate(round_half_even(x / scale[i]) + zero[i])
//   TO_F32   y = (x - zero[i]) * scale[i]
//
// Memory    TO_Q8: x: float32 bits, row-major; y: Int8x4 words in layout number LAYOUT. TO_F32: x: Int8x4
//           words in layout number LAYOUT; y: float32, row-major. scale (float32 bits) and zero (int32):
//           row-major, one for each element.
// Threads   one invocation writes one word (TO_Q8) or one element (TO_F32).
#version 450
#extension GL_EXT_control_flow_attributes : require

#define TO_Q8 0
#define TO_F32 1

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly buffer Scale { uint scale[]; };
layout(set = 0, binding = 2) readonly buffer Zero { int zero[]; };
#if TO == TO_Q8
layout(set = 0, binding = 3) writeonly buffer Y { int y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint threads;           // number of words (TO_Q8) or elements of y
  uint n, c, h, w;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "exact_float.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 extent = uvec4(p.n, p.c, p.h, p.w);
  if (i < p.threads) {
#if TO == TO_Q8
    ivec4 q = ivec4(0);
    [[unroll]] for (uint lane = 0u; lane < 4u; lane++) {
      uvec4 e = any_layout_element(LAYOUT, i, lane, extent);
      if (!all(lessThan(e, extent))) continue;
      uint at = row_major(e, extent);
      q[lane] = clamp(quantized_quotient(x[at], scale[at]) + zero[at], -128, 127);
    }
    y[i] = int8x4_pack(q);
#else
    uvec4 e = from_row_major(i, extent);
    int q = int8x4_lane(int(x[any_layout_word(LAYOUT, e, extent)]), any_layout_lane(LAYOUT, e));
    y[i] = multiply(float(q - zero[i]), uintBitsToFloat(scale[i]));
#endif
  }
}
