// float16 as float32, exactly, or float32 as float16, rounded as the device rounds (to the nearest, or toward
// zero); beyond 65504 infinite. No 16-bit storage is needed: two numbers are a word.
//
// Memory    x: float32 or words of two float16; y: the other. An odd number of elements leaves half a word.
// Threads   one for each two elements.
#version 450

layout(local_size_x = 64) in;

#if WIDEN
layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { uint y[]; };
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint elements;
} p;

#include "workgroup.glslh"
#include "float16.glslh"

void main() {
  uint word = workgroup_index() * 64u + gl_LocalInvocationID.x, at = 2u * word;
  if (at < p.elements) {
#if WIDEN
    vec2 values = unpackHalf2x16(x[word]);
    y[at] = values.x;
    if (at + 1u < p.elements) y[at + 1u] = values.y;
#else
    // one by one: of a pair, a driver's packHalf2x16 may put bits of an infinite half into its neighbour
    y[word] = float16_bits(x[at]) | float16_bits(at + 1u < p.elements ? x[at + 1u] : 0.0) << 16;
#endif
  }
}
