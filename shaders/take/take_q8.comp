// y[i] = x[index[i]]: copy int8 elements by indices that the host computes.
//
// Memory    x, y: Int8x4 words in layouts number X_LAYOUT and Y_LAYOUT; index: int32, for each element of y
//           in row-major order, the row-major index of its element of x, or -1 for `fill`.
// Threads   one invocation writes one word of y.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int X_LAYOUT = 0;
layout(constant_id = 2) const int Y_LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer Index { int index[]; };
layout(set = 0, binding = 2) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint words;
  int fill;
  uint y_n, y_c, y_h, y_w, x_n, x_c, x_h, x_w;  // shapes of y and x in their layouts
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 y_extent = uvec4(p.y_n, p.y_c, p.y_h, p.y_w), x_extent = uvec4(p.x_n, p.x_c, p.x_h, p.x_w);
  if (i < p.words) {
    ivec4 lanes = ivec4(p.fill);
    [[unroll]] for (uint lane = 0u; lane < 4u; lane++) {
      uvec4 e = any_layout_element(Y_LAYOUT, i, lane, y_extent);
      if (!all(lessThan(e, y_extent))) continue;
      int from = index[row_major(e, y_extent)];
      if (from < 0) continue;
      uvec4 source = from_row_major(uint(from), x_extent);
      lanes[lane] =
          int8x4_lane(x[any_layout_word(X_LAYOUT, source, x_extent)], any_layout_lane(X_LAYOUT, source));
    }
    y[i] = int8x4_pack(lanes);
  }
}
