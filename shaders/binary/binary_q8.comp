// y = a op b of two quantized tensors, the same bits as the table of all 65,536 results that the host made.
//
// add and mul compute in float and round. Where the value lies so near to a tie that a device's rounding
// could decide (farther than `safe` from the nearest integer), the table does: so no device needs exact
// floats, and most elements need no table.
//   OP_ADD    a * ra + b * rb + offset          OP_MUL   (a - a_zero) * (b - b_zero) * ra + offset        OP_TABLE  table alone
//
// Memory    a, b, y: Int8x4 words in one layout; table: byte 256 * (b + 128) + (a + 128), four to a word.
//   SAME      equal shapes: vectors of four words, any layout.
//   otherwise broadcast: a word of y holds four elements along the axis LANE_AXIS, so it needs one word of a and of b.
// Threads   one invocation writes one vector (SAME) or one word.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OP_ADD 0
#define OP_MUL 1
#define OP_TABLE 2

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
// the layout's extent is (1, 1, rows, last axis) of the logical dims
layout(constant_id = 2) const bool FOLDED = false;
layout(constant_id = 3) const uint LANE_AXIS = 1;

#if SAME
#define Element ivec4
#else
#define Element int
#endif
layout(set = 0, binding = 0) readonly buffer A { Element a[]; };
layout(set = 0, binding = 1) readonly buffer B { Element b[]; };
layout(set = 0, binding = 2) readonly buffer Table { int table[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Element y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;             // vectors or words of y
  float ra, rb, offset, safe;
  int a_zero, b_zero, y_min, y_max;
  uint y_n, y_c, y_h, y_w, a_n, a_c, a_h, a_w, b_n, b_c, b_h, b_w;  // logical dims; broadcast only
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

int from_table(int va, int vb) {
  uint i = uint(vb + 128) * 256u + uint(va + 128);
  return int8x4_lane(table[i >> 2], i & 3u);
}

int combine(int va, int vb) {
#if OP == OP_TABLE
  return from_table(va, vb);
#else
#if OP == OP_ADD
  float value = float(va) * p.ra + (float(vb) * p.rb + p.offset);
#else
  float value = float((va - p.a_zero) * (vb - p.b_zero)) * p.ra + p.offset;
#endif
  float rounded = roundEven(value);
  if (abs(value - rounded) > p.safe) return from_table(va, vb);
  return clamp(int(clamp(rounded, -512.0, 512.0)), p.y_min, p.y_max);
#endif
}

Int8x4 combine_word(ivec4 va, ivec4 vb) {
  ivec4 q;
  [[unroll]] for (int i = 0; i < 4; i++) q[i] = combine(va[i], vb[i]);
  return int8x4_pack(q);
}

#if !SAME
uvec4 extent_of(uvec4 dims) { return FOLDED ? uvec4(1u, 1u, dims.x * dims.y * dims.z, dims.w) : dims; }

// The word that holds logical element e (broadcast into dims), and the lane of e where all four lanes of y
// are the same element.
uvec2 place(uvec4 e, uvec4 dims) {
  uvec4 extent = extent_of(dims);
  e = min(e, dims - 1u);
  if (FOLDED) e = from_row_major(row_major(e, dims), extent);
  return uvec2(any_layout_word(LAYOUT, e, extent), any_layout_lane(LAYOUT, e));
}

ivec4 lanes(Int8x4 word, uint lane, bool one) { return one ? ivec4(int8x4_lane(word, lane)) : int8x4_unpack(word); }
#endif

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
#if SAME
  if (i < p.count) {
    ivec4 words_a = a[i], words_b = b[i], result;
    [[unroll]] for (int w = 0; w < 4; w++) result[w] = combine_word(int8x4_unpack(words_a[w]), int8x4_unpack(words_b[w]));
    y[i] = result;
  }
#else
  if (i < p.count) {
    uvec4 y_dims = uvec4(p.y_n, p.y_c, p.y_h, p.y_w), a_dims = uvec4(p.a_n, p.a_c, p.a_h, p.a_w);
    uvec4 b_dims = uvec4(p.b_n, p.b_c, p.b_h, p.b_w), extent = extent_of(y_dims);
    // a padding word is computed from the last element
    uvec4 e = min(any_layout_element(LAYOUT, i, 0u, extent), extent - 1u);
    if (FOLDED) e = from_row_major(row_major(e, extent), y_dims);
    uvec2 at_a = place(e, a_dims), at_b = place(e, b_dims);
    bool one_a = LANE_AXIS == 1u ? p.a_c == 1u : p.a_w == 1u, one_b = LANE_AXIS == 1u ? p.b_c == 1u : p.b_w == 1u;
    y[i] = combine_word(lanes(a[at_a.x], at_a.y, one_a), lanes(b[at_b.x], at_b.y, one_b));
  }
#endif
}
