// One pass of the number-theoretic transform over one axis, in place. A run is RADIX elements that are `span`
// elements apart. The pass transforms each run in registers, and multiplies it by the twiddle factors that
// join the passes of an axis. The results of a pass are in bit-reversed order, which element-wise products
// allow. The INVERSE passes run in the opposite order and restore the original order of elements.
//
// Memory    x: uint32 [outer][length][inner], modulo p.prime; a pass transforms groups of RADIX * span
//           elements along the axis. roots: uint32 powers of a root of unity of order ROOTS, times 2^32.
// Threads   one invocation transforms one run.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly buffer Roots { uint roots[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint runs, inner, span;  // runs: number of runs; inner: distance in x of neighbours along the axis
  uint prime, inverse;     // inverse of the prime modulo 2^32
} p;

#include "workgroup.glslh"
#include "modular.glslh"

#define ROOTS 4096u
#define RADIX (1u << LOG_RADIX)

uint values[RADIX];

// Compute the butterflies of one level: combine elements that are `far` apart, with powers of a root of
// order 2 * far.
void level(const uint far) {
  [[unroll]] for (uint k = 0u; k < far; k++) {
    uint power = ROOTS / (2u * far) * k;
    uint root = roots[INVERSE == 1 ? (ROOTS - power) % ROOTS : power];
    [[unroll]] for (uint i = k; i < RADIX; i += 2u * far) {
      uint a = values[i], b = values[i + far];
#if INVERSE == 1
      if (k > 0u) b = multiply(b, root);
      values[i] = add(a, b);
      values[i + far] = subtract(a, b);
#else
      values[i] = add(a, b);
      values[i + far] = subtract(a, b);
      if (k > 0u) values[i + far] = multiply(values[i + far], root);
#endif
    }
  }
}

// Return the twiddle factor of element i: power k * (bit-reversed i) of a root of order RADIX * span.
uint twiddle(uint i, uint k) {
  uint power = k * (bitfieldReverse(i) >> (32u - LOG_RADIX)) * (ROOTS / (RADIX * p.span));
  return roots[INVERSE == 1 ? (ROOTS - power) % ROOTS : power];
}

void turn(uint k) {
  if (p.span > 1u) {
    [[unroll]] for (uint i = 1u; i < RADIX; i++) values[i] = multiply(values[i], twiddle(i, k));
  }
}

void main() {
  uint id = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (id < p.runs) {
    uint inner = id % p.inner, line = id / p.inner, k = line % p.span, group = line / p.span;
    uint first = (group * RADIX * p.span + k) * p.inner + inner, stride = p.span * p.inner;
    [[unroll]] for (uint i = 0u; i < RADIX; i++) values[i] = x[first + i * stride];
#if INVERSE == 1
    turn(k);
    [[unroll]] for (uint far = 1u; far < RADIX; far *= 2u) level(far);
#else
    [[unroll]] for (uint far = RADIX / 2u; far > 0u; far /= 2u) level(far);
    turn(k);
#endif
    [[unroll]] for (uint i = 0u; i < RADIX; i++) x[first + i * stride] = values[i];
  }
}
