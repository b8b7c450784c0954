// Copy 32-bit elements by indices that the host computes.
//   TAKE  y[i] = x[index[i]], or `fill` (as bits) where the index is -1        PUT  y[index[i]] = x[i]
//
// Memory    x, y: 32-bit numbers, row-major; index: int32.
// Threads   one invocation copies one element.
#version 450

#define TAKE 0
#define PUT 1

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer Index { int index[]; };
layout(set = 0, binding = 2) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint elements;
  int fill;
} p;

#include "workgroup.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.elements) {
    int at = index[i];
#if HOW == TAKE
    y[i] = at < 0 ? p.fill : x[at];
#else
    y[at] = x[i];
#endif
  }
}
