// y = table[x]: map each int8 number by one table, in any layout.
//
// Memory    x, y: vectors of four Int8x4 words in the same layout; table: 64 words of 256 int8 results; byte
//           i is the result for the number i - 128.
// Threads   a workgroup holds the table in shared memory; each invocation maps VECTORS vectors that are
//           LOCAL_X vectors apart.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) readonly buffer Table { int table[]; };
layout(set = 0, binding = 2) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint vectors;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"

// the results, in the low bytes, for numbers in the order 0, .., 127, -128, .., -1: the index is a number's
// byte as uint8
shared int entries[256];

Int8x4 map_word(Int8x4 word) {
  uint u = uint(word);
  return int8x4_pack(
      ivec4(entries[u & 255u], entries[u >> 8 & 255u], entries[u >> 16 & 255u], entries[u >> 24]));
}

void main() {
  uint first = workgroup_index() * LOCAL_X * VECTORS + gl_LocalInvocationID.x;
  ivec4 words[VECTORS];  // issue all loads before the first lookup
  [[unroll]] for (uint i = 0u; i < VECTORS; i++) words[i] = x[min(first + i * LOCAL_X, p.vectors - 1u)];
  for (uint i = gl_LocalInvocationID.x; i < 64u; i += LOCAL_X) {
    int word = table[i ^ 32u];
    [[unroll]] for (uint k = 0u; k < 4u; k++) entries[4u * i + k] = word >> (8u * k);
  }
  barrier();
  [[unroll]] for (uint i = 0u; i < VECTORS; i++) {
    ivec4 v = words[i], result = ivec4(map_word(v.x), map_word(v.y), map_word(v.z), map_word(v.w));
    if (first + i * LOCAL_X < p.vectors) y[first + i * LOCAL_X] = result;
  }
}
