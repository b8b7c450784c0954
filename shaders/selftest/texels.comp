// Copies vectors of four words, read through a uniform texel buffer, with p.add added to each word: a copy of
// a copy shows whether a read sees what was stored just before.
//
// Memory    x: texels of four int32; y: vectors of as many.
// Threads   each invocation copies one vector.
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
