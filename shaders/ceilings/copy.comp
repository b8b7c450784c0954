// Measure the memory bandwidth of a device: copy x to y. One invocation copies 16 bytes.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;
} p;

#include "workgroup.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) y[i] = x[i];
}
