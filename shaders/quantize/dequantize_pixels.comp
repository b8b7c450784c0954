// y = (x - zero_point) * scale for images, rounded once: ONNX DequantizeLinear per tensor.
//
// Memory    x: int8 in kPackedInt8_16C (BLOCKED) or kPackedInt8_4W4C; y: float32, row-major.
// Threads   one invocation converts 16 channels of one pixel; neighbouring invocations convert neighbouring
//           pixels.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;

#if BLOCKED
layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#endif
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint threads;
  uint n, c, h, w;
  float scale;
  int zero_point;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "exact_float.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uint line = i / p.w, w = i - line * p.w, plane = line / p.h, block = plane / p.n;
  uint image = plane - block * p.n, h = line - plane * p.h, c4 = ceil_div(p.c, 4u);
  if (i < p.threads) {
#if BLOCKED
    ivec4 words = x[i];
#else
    uint at = 4u * ((image * p.h + h) * ceil_div(p.w, 4u) + w / 4u) * c4 + w % 4u;
    ivec4 words;
    [[unroll]] for (uint k = 0u; k < 4u; k++) words[k] = x[at + 4u * min(4u * block + k, c4 - 1u)];
#endif
    uint first = (image * p.c * p.h + h) * p.w + w;
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
      ivec4 q = int8x4_unpack(words[k]) - p.zero_point;
      [[unroll]] for (uint lane = 0u; lane < 4u; lane++) {
        uint channel = 16u * block + 4u * k + lane;
        if (channel < p.c) y[first + channel * p.h * p.w] = multiply(float(q[lane]), p.scale);
      }
    }
  }
}
