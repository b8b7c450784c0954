// Where the largest number along an axis stands (or the least), the first of equal ones (or the last).
//
// Memory    x: Int8x4 words in any layout; y: row-major int32.
// Threads   one invocation finds one place, going along the axis.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;               // places
  uint steps, inner;        // along the axis; elements of the axes behind it
  int sign;                 // 1: the largest, -1: the least
  int later;                // 1: the last of equal ones, 0: the first
  uint x_n, x_c, x_h, x_w;  // extent of x
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) {
    uvec4 extent = uvec4(p.x_n, p.x_c, p.x_h, p.x_w);
    uint first = i / p.inner * p.steps * p.inner + i % p.inner;
    int best = -129, place = 0;
    for (uint k = 0u; k < p.steps; k++) {
      uvec4 e = from_row_major(first + k * p.inner, extent);
      int value = p.sign * int8x4_lane(x[any_layout_word(LAYOUT, e, extent)], any_layout_lane(LAYOUT, e));
      if (value >= best + 1 - p.later) {
        best = value;
        place = int(k);
      }
    }
    y[i] = place;
  }
}
