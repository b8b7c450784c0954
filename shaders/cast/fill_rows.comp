// Pad rows of float16 or float32 numbers with zeros: y[row, k] = k < x_k ? x[row, k] : 0. Numbers of x are
// copied bit for bit. The shader needs no 16-bit storage: it reads or writes two float16 numbers as one word.
//
// Memory    x, y: float32 or float16, row-major; a row of x has x_k numbers, a row of y has y_k numbers,
//           which are whole vectors of four words. If x has an odd number of float16 elements, half of its
//           last word is unused.
// Threads   one invocation writes one vector of y.
#version 450

layout(local_size_x = 64) in;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { uvec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint vectors, x_k, y_k;
} p;

#include "workgroup.glslh"

// Return the bits of x[at] if k < x_k, else 0.
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
