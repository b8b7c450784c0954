// y = (x - zero_point) * scale for rows of whole words, rounded once: ONNX DequantizeLinear per tensor.
//
// Memory    x: int8 in kPackedInt8_16C with one pixel (BLOCKED) or kPackedInt8_4H4W; y: float32, row-major.
// Threads   one invocation converts four columns of one row (BLOCKED) or of four rows. Neighbouring
//           invocations convert neighbouring columns, so that they store neighbouring vectors.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

#if BLOCKED
layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
#endif
layout(set = 0, binding = 1) writeonly buffer Y { vec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint threads;
  uint rows;
  uint width;  // number of words in a row
  float scale;
  int zero_point;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "exact_float.glslh"

vec4 converted(Int8x4 word) {
  ivec4 q = int8x4_unpack(word) - p.zero_point;
  vec4 found;
  [[unroll]] for (uint lane = 0u; lane < 4u; lane++) found[lane] = multiply(float(q[lane]), p.scale);
  return found;
}

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.threads) {
    uint row = i / p.width, column = i - row * p.width;
#if BLOCKED
    y[i] = converted(x[4u * ((column >> 2) * p.rows + row) + (column & 3u)]);
#else
    ivec4 words = x[i];
    [[unroll]] for (uint k = 0u; k < 4u; k++)
      if (4u * row + k < p.rows) y[(4u * row + k) * p.width + column] = converted(words[k]);
#endif
  }
}
