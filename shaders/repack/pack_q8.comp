// Pack the bytes of a row-major array, which the host uploads unchanged, into the words of a packed layout.
//
// Memory    x: bytes of int8 or uint8, row-major, four to a word; y: Int8x4 words in layout number LAYOUT;
//           padding lanes get 0.
// Threads   one invocation writes one word.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
layout(constant_id = 2) const int FLIP = 0;  // XORed into each byte: 128 converts uint8 to stored int8

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint words;
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
    uvec4 e = any_layout_element(LAYOUT, word, lane, extent);
    if (!all(lessThan(e, extent))) continue;
    uint i = row_major(e, extent);
    lanes[lane] = int8x4_lane(x[i / 4u], i % 4u) ^ FLIP;
  }
  if (word < p.words) y[word] = int8x4_pack(lanes);
}
