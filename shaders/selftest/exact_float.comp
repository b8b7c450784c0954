// Self-test: compute float32 arithmetic in integers (exact_float.glslh) on pairs of bit patterns whose
// results the host knows.
//
// Memory    x: float32 bits, pairs (a, b); y: four results for each pair: the bits of |a| / |b|, |a| + |b|
//           and |a| * |b|, and the int32 round_half_even(a / b) clamped to [-512, 512].
// Threads   one invocation computes the results of one pair.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer X { uvec2 x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { uvec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;
} p;

#include "workgroup.glslh"
#include "exact_float.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) {
    uint a = x[i].x, b = x[i].y;
    y[i] = uvec4(divide(a, b), add_magnitudes(a, b), multiply_magnitudes(a, b),
        uint(quantized_quotient(a, max(b, FLOAT_HIDDEN))));
  }
}
