// Self-test of subgroupShuffle: in iteration i, every lane reads from lane i, and from the lane that is i
// lanes ahead.
//
// Memory    x: a vec4 for each lane; y: for each lane and iteration i, the vec4 of lane i, and the vec4 of
//           the lane i lanes ahead (modulo LANES).
// Threads   a workgroup is a subgroup of LANES invocations.
#version 450
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8;

layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { vec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;
} p;

#include "workgroup.glslh"

void main() {
  uint lane = gl_LocalInvocationIndex, group = workgroup_index(), i = group * LANES + lane;
  vec4 mine = x[i];
  for (uint step_ = 0u; step_ < LANES; step_++) {
    y[2u * (i * LANES + step_)] = subgroupShuffle(mine, step_);
    y[2u * (i * LANES + step_) + 1u] = subgroupShuffle(mine, (lane + step_) % LANES);
  }
}
