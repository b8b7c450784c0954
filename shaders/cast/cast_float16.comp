// Convert float16 to float32, which is exact, or float32 to float16, which rounds as the device does (to
// nearest, or toward zero); numbers beyond 65504 become infinite. The shader needs no 16-bit storage: it
// reads or writes two float16 numbers as one word.
//
// Memory    x: float32, or words of two float16 numbers; y: words of two float16 numbers, or float32. If the
//           number of elements is odd, half of the last word is unused.
// Threads   one invocation converts two elements.
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
    // Pack the two numbers separately: in some drivers' packHalf2x16, an infinite number changes bits of
    // the other number.
    y[word] = float16_bits(x[at]) | float16_bits(at + 1u < p.elements ? x[at + 1u] : 0.0) << 16;
#endif
  }
}
