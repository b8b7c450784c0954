// Move int8 elements: y[d] = x[sum of (d_i - before_i) * stride_i] where 0 <= d_i - before_i < size_i for
// every axis i. All other elements of y are `fill`, or (KEEP) are left unchanged. Permuted strides transpose
// x. A negative `before`, or a stride, slices x. A positive `before` pads x. With KEEP, x is one input of a
// concatenation.
//
// Memory    x: Int8x4 words in layout number X_LAYOUT; y: Int8x4 words in layout number LAYOUT. The index of
//           an element of x counts in row-major order. The indices d of y are those of its layout's shape, or
//           (FOLDED) of another shape with the same row-major order.
// Threads   one invocation writes one word of y inside the box, which is all of y, or a range of whole words
//           along one axis.
// WORDS     a word of y is one word of x, because x and y have the same lane axis and the offset is a
//           multiple of four: one load instead of four.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
layout(constant_id = 2) const bool FOLDED = false;
layout(constant_id = 3) const bool WORDS = false;
layout(constant_id = 4) const bool KEEP = false;
layout(constant_id = 5) const uint LANE_AXIS = 1;
layout(constant_id = 6) const int X_LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint words;
  int fill;
  // the box of y that is written: all of y, or a range along one axis of the layout's shape
  uint box_axis, box_first, box_size;
  uint y_n, y_c, y_h, y_w, x_n, x_c, x_h, x_w;                 // shapes of the two layouts
  uint dims_n, dims_c, dims_h, dims_w;                         // logical shape of y
  int before_n, before_c, before_h, before_w;
  uint size_n, size_c, size_h, size_w;
  int stride_n, stride_c, stride_h, stride_w;                  // strides in x, in row-major elements
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

// Return true if element e of y, an index in its layout's shape, comes from x. at: the index of this
// element in the moved part of x; from: its index in the shape of x.
bool source(uvec4 e, uvec4 y_extent, out uvec4 at, out uvec4 from) {
  uvec4 d =
      FOLDED ? from_row_major(row_major(e, y_extent), uvec4(p.dims_n, p.dims_c, p.dims_h, p.dims_w)) : e;
  // A negative index is a uint larger than any size.
  at = uvec4(ivec4(d) - ivec4(p.before_n, p.before_c, p.before_h, p.before_w));
  ivec4 steps = ivec4(at) * ivec4(p.stride_n, p.stride_c, p.stride_h, p.stride_w);
  from = from_row_major(uint(steps.x + steps.y + steps.z + steps.w), uvec4(p.x_n, p.x_c, p.x_h, p.x_w));
  return all(lessThan(e, y_extent)) && all(lessThan(at, uvec4(p.size_n, p.size_c, p.size_h, p.size_w)));
}

uint along_lanes(uvec4 v) { return LANE_AXIS == 1u ? v.y : v.w; }

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 y_extent = uvec4(p.y_n, p.y_c, p.y_h, p.y_w), x_extent = uvec4(p.x_n, p.x_c, p.x_h, p.x_w),
        box = y_extent, offset = uvec4(0u);
  if (p.box_axis == 1u) { box.y = p.box_size; offset.y = p.box_first; }
  if (p.box_axis == 2u) { box.z = p.box_size; offset.z = p.box_first; }
  if (p.box_axis == 3u) { box.w = p.box_size; offset.w = p.box_first; }
  uvec4 first = any_layout_element(LAYOUT, i, 0u, box) + offset, at, from;
  Int8x4 result = int8x4_broadcast(p.fill);
  uint found = 0u;  // mask of the word's bytes that come from x
  if (WORDS) {
    if (source(first, y_extent, at, from)) {
      uvec4 size = uvec4(p.size_n, p.size_c, p.size_h, p.size_w);
      uint own = FOLDED ? size.w - at.w : along_lanes(size) - along_lanes(at);
      uint lanes = min(own, along_lanes(y_extent) - along_lanes(first));
      found = lanes >= 4u ? 0xffffffffu : (1u << (8u * lanes)) - 1u;
      result = (result & int(~found)) | (x[any_layout_word(X_LAYOUT, from, x_extent)] & int(found));
    }
  } else {
    [[unroll]] for (uint lane = 0u; lane < 4u; lane++) {
      if (!source(any_layout_element(LAYOUT, i, lane, box) + offset, y_extent, at, from)) continue;
      uint word = any_layout_word(X_LAYOUT, from, x_extent);
      int value = int8x4_lane(x[word], any_layout_lane(X_LAYOUT, from));
      result = bitfieldInsert(result, value, int(8u * lane), 8);
      found |= 0xffu << (8u * lane);
    }
  }
  if (i < p.words) {
    uint word = any_layout_word(LAYOUT, first, y_extent);
    if (!KEEP || found == 0xffffffffu) y[word] = result;
    else if (found != 0u) y[word] = (y[word] & int(~found)) | (result & int(found));
  }
}
