// Self-test of uniform texel buffers: copy vectors of four words and add p.add to each word. Two copies in
// succession show whether a read sees the words that the previous dispatch stored.
//
// Memory    x: texels of four int32; y: vectors of four int32.
// Threads   one invocation copies one vector.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) uniform isamplerBuffer x;
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;
  int add;
} p;

#include "workgroup.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) y[i] = texelFetch(x, int(i)) + p.add;
}
