// y = table[c][x]: map each int8 number by the table of its slice c along an axis.
//   OUT_Q8    y is int8 in the layout of x        OUT_F32   y is float32, row-major
//
// Memory    x: Int8x4 words in layout number LAYOUT; table: 256 results for each slice, the result for -128
//           first (int8: four to a word). Element i in row-major order belongs to slice (i / inner) % count.
// Threads   one invocation writes one word of y (OUT_Q8) or one element (OUT_F32).
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OUT_Q8 0
#define OUT_F32 1

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#if OUT == OUT_Q8
layout(set = 0, binding = 1) readonly buffer Table { int table[]; };
layout(set = 0, binding = 2) writeonly buffer Y { int y[]; };
#else
layout(set = 0, binding = 1) readonly buffer Table { float table[]; };
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint threads;           // number of words (OUT_Q8) or elements of y
  uint n, c, h, w;
  uint inner, count;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

uint entry(uint element, int value) { return (element / p.inner) % p.count * 256u + uint(value + 128); }

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 extent = uvec4(p.n, p.c, p.h, p.w);
  if (i < p.threads) {
#if OUT == OUT_Q8
    ivec4 values = int8x4_unpack(x[i]), lanes = ivec4(0);
    [[unroll]] for (uint lane = 0u; lane < 4u; lane++) {
      uvec4 e = any_layout_element(LAYOUT, i, lane, extent);
      if (!all(lessThan(e, extent))) continue;
      uint at = entry(row_major(e, extent), values[lane]);
      lanes[lane] = int8x4_lane(table[at >> 2], at & 3u);
    }
    y[i] = int8x4_pack(lanes);
#else
    uvec4 e = from_row_major(i, extent);
    y[i] = table[entry(i, int8x4_lane(x[any_layout_word(LAYOUT, e, extent)], any_layout_lane(LAYOUT, e)))];
#endif
  }
}
