// Rows of float16 or float32 that end with zeros: y[row, k] = k < x_k ? x[row, k] : 0, bit for bit. No 16-bit
// storage is needed: two numbers of float16 are a word.
//
// Memory    x, y: row-major, x_k and y_k numbers a row, of y whole vectors of four words. Of float16 half a
//           word of x may be left.
// Threads   one for each vector of y.
#version 450

layout(local_size_x = 64) in;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { uvec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint vectors, x_k, y_k;
} p;

#include "workgroup.glslh"

// The bits of x[at], for k that x has.
uint number(uint at, uint k) {
  if (k >= p.x_k) return 0u;
#if HALVES
  return x[at >> 1u] >> 16u * (at & 1u) & 0xffffu;
#else
  return x[at];
#endif
}

uint word(uint at, uint k) {
#if HALVES
  return number(at, k) | number(at + 1u, k + 1u) << 16u;
#else
  return number(at, k);
#endif
}

void main() {
  const uint step = 1u + HALVES;
  uint vector = workgroup_index() * 64u + gl_LocalInvocationID.x, first = 4u * step * vector;
  if (vector < p.vectors) {
    uint row = first / p.y_k, k = first - row * p.y_k, at = row * p.x_k + k;
    y[vector] = uvec4(word(at, k), word(at + step, k + step), word(at + 2u * step, k + 2u * step),
                      word(at + 3u * step, k + 3u * step));
  }
}
