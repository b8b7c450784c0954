// Copy int8 elements from one packed layout and shape to another, in the same row-major order of elements. So
// one dispatch can change the layout and reshape or flatten.
//
// Memory    x: Int8x4 words in layout number X_LAYOUT with shape x_*; y: Int8x4 words in layout number
//           Y_LAYOUT with shape y_*; padding lanes of y get 0.
// Threads   one invocation writes one word.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int X_LAYOUT = 0;
layout(constant_id = 2) const int Y_LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint words;
  uint x_n, x_c, x_h, x_w;
  uint y_n, y_c, y_h, y_w;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

void main() {
  uint word = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 x_extent = uvec4(p.x_n, p.x_c, p.x_h, p.x_w), y_extent = uvec4(p.y_n, p.y_c, p.y_h, p.y_w);
  ivec4 lanes = ivec4(0);
  [[unroll]] for (uint lane = 0u; lane < 4u; lane++) {
    uvec4 to = any_layout_element(Y_LAYOUT, word, lane, y_extent);
    if (!all(lessThan(to, y_extent))) continue;
    uvec4 from = from_row_major(row_major(to, y_extent), x_extent);
    lanes[lane] = int8x4_lane(x[any_layout_word(X_LAYOUT, from, x_extent)], any_layout_lane(X_LAYOUT, from));
  }
  if (word < p.words) y[word] = int8x4_pack(lanes);
}
