// Find the best score in each score map, and its position: of equal scores, the first position. Each
// workgroup searches a segment of one map.
//
//   score = y, or (SQUARES) squares - 2 y: the squared difference without the template's sum of squares
//
// Memory    y: scores [row][position], int32 or (WIDE) int64 as low and high word; a row is the score map of
//           one image and one template. squares: int64 [image][position]. best: for each segment, the best
//           score as low and high word, and its position.
// Threads   a workgroup searches SEGMENT positions of one row.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const bool WIDE = false;
layout(constant_id = 2) const bool SQUARES = false;
layout(constant_id = 3) const bool SMALLEST = false;

layout(set = 0, binding = 0) readonly buffer Y { uint y[]; };
layout(set = 0, binding = 1) readonly buffer Squares { uvec2 squares[]; };
layout(set = 0, binding = 2) writeonly buffer Best { uvec4 best[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint rows, channels, plane, segments;
  // first: index in `best` of the first result; first_place: first position of this part of the map
  uint first, first_place;
} p;

#include "workgroup.glslh"

#define SEGMENT 4096u

shared uvec4 found[LOCAL_X];

uvec2 score(uint row, uint i) {
  uint at = row * p.plane + i;
  uvec2 value = WIDE ? uvec2(y[2u * at], y[2u * at + 1u]) : uvec2(y[at], uint(int(y[at]) >> 31));
  if (SQUARES) {
    uvec2 square = squares[row / p.channels * p.plane + i];
    value = uvec2(value.x << 1u, (value.y << 1u) | (value.x >> 31u));
    uint borrow, low = usubBorrow(square.x, value.x, borrow);
    value = uvec2(low, square.y - value.y - borrow);
  }
  return value;
}

bool less(uvec2 a, uvec2 b) { return a.y == b.y ? a.x < b.x : int(a.y) < int(b.y); }

// Return the better of two positions (score in x and y, index in z; w is 0 if there is no position).
uvec4 better(uvec4 a, uvec4 b) {
  if (a.w == 0u || b.w == 0u) return a.w == 0u ? b : a;
  if (a.xy == b.xy) return a.z < b.z ? a : b;
  return less(a.xy, b.xy) == SMALLEST ? a : b;
}

void main() {
  uint id = workgroup_index(), row = id / p.segments, segment = id % p.segments;
  uint last = min((segment + 1u) * SEGMENT, p.plane), t = gl_LocalInvocationID.x;
  uvec4 mine = uvec4(0u);
  for (uint i = segment * SEGMENT + t; i < last; i += LOCAL_X)
    mine = better(mine, uvec4(score(row, i), p.first_place + i, 1u));
  found[t] = mine;
  for (uint half_ = LOCAL_X / 2u; half_ > 0u; half_ /= 2u) {
    barrier();
    if (t < half_) found[t] = better(found[t], found[t + half_]);
  }
  if (t == 0u) best[p.first + id] = found[0];
}
