// Unpack the words of a packed layout into the bytes of a row-major array, which the host downloads
// unchanged.
//
// Memory    x: Int8x4 words in layout number LAYOUT; y: bytes of int8 or uint8, row-major, four to a word;
//           bytes beyond the last element get 0.
// Threads   one invocation writes one word of four bytes.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
layout(constant_id = 2) const int FLIP = 0;  // XORed into each byte: 128 converts stored int8 to uint8

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint elements;
  uint n, c, h, w;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

void main() {
  uint word = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 extent = uvec4(p.n, p.c, p.h, p.w);
  ivec4 lanes = ivec4(0);
  [[unroll]] for (uint lane = 0u; lane < 4u; lane++) {
    uint i = 4u * word + lane;
    if (i >= p.elements) continue;
    uvec4 e = from_row_major(i, extent);
    lanes[lane] = int8x4_lane(x[any_layout_word(LAYOUT, e, extent)], any_layout_lane(LAYOUT, e)) ^ FLIP;
  }
  if (4u * word < p.elements) y[word] = int8x4_pack(lanes);
}
