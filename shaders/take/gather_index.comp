// index[o][j][k] = (o * axis + id[j]) * inner + k: compute, for each element of a Gather's result, the index
// of the element of x that it copies. The ids are on the device. A negative id counts from the end of the
// axis; an id outside the axis selects the nearest element.
//
// Memory    id: int32, one for each j; index: int32 [o][j][k], row-major.
// Threads   one invocation writes one index.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer Id { int id[]; };
layout(set = 0, binding = 1) writeonly buffer Index { int index[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint elements;
  uint ids;
  uint inner;
  int axis;
} p;

#include "workgroup.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.elements) {
    uint k = i % p.inner, row = i / p.inner;
    int at = id[row % p.ids];
    at = clamp(at < 0 ? at + p.axis : at, 0, p.axis - 1);
    index[i] = int((row / p.ids * uint(p.axis) + uint(at)) * p.inner + k);
  }
}
