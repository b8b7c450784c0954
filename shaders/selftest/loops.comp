// How many times a loop runs before the driver ends it, up to p.most: Mesa's llvmpipe ends the loops of an
// invocation after 65,535 rounds.
//
// Memory    y: what each invocation counted.
// Threads   every invocation counts for itself, by steps that no compiler knows ahead.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint most;
} p;

#include "workgroup.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x, left = p.most, rounds = 0u;
  // A generator whose every state but 0 leads to one that is not 0: what is taken off is always 1.
  for (uint state = i + 1u; left > 0u; left -= min(state, 1u)) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    rounds++;
  }
  y[i] = int(rounds);
}
