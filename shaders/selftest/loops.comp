// Self-test: count the iterations of a loop up to p.most, or until the driver ends the loop. Mesa's llvmpipe
// ends the loops of an invocation after 65,535 iterations.
//
// Memory    y: uint32, the count of each invocation.
// Threads   invocations count independently, by arithmetic that a compiler cannot evaluate at compile time.
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
  // A xorshift state other than 0 never becomes 0, so min(state, 1u) is 1; compilers do not detect this.
  for (uint state = i + 1u; left > 0u; left -= min(state, 1u)) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    rounds++;
  }
  y[i] = int(rounds);
}
