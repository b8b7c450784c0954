// Measure the rate of the int8 kernels' arithmetic in registers, or of a copy. probe/rates.py times two loop
// counts and uses the difference, so that the fixed cost of a dispatch cancels out.
//
// OP 0    steps along k of a 4x4 tile in the variant's dot form: a step is sixteen dot products of eight
//         words
// OP 1    float32 fused multiply-adds in sixteen independent chains
// OP 2    copy: each invocation copies `loops` ivec4
// Memory    x: ivec4, which only the copy reads; y: one ivec4 for each invocation (copy: `loops`), so that
//           the compiler keeps the arithmetic.
// Threads   LOCAL_X independent invocations. Each iteration reads the sums of the previous iteration as its
//           input words. So the inputs change without other work, and the compiler cannot hoist the
//           products out of the loop.
#version 450
#extension GL_EXT_control_flow_attributes : require
#if OP == 0 && !defined(FLOAT_LANES)
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint groups, loops;
  float seed;
} p;

#include "workgroup.glslh"

#if OP == 0
#include "dot4x8.glslh"
#ifdef FLOAT_LANES
#define BITS(v) floatBitsToInt(v)
#else
#define BITS(v) (v)
#endif

ivec4 work(uint i) {
  Sum4 sums[4];
  [[unroll]] for (uint r = 0u; r < 4u; r++) [[unroll]]
    for (uint c = 0u; c < 4u; c++) sums[r][c] = Sum(p.seed) + Sum(i + 4u * r + c);
  for (uint k = 0u; k < p.loops; k++) {
    [[unroll]] for (uint step_ = 0u; step_ < STEPS; step_++) {
      XOperand xs[4];
      WOperand ws[4];
      [[unroll]] for (uint r = 0u; r < 4u; r++) xs[r] = x_operand(BITS(sums[r][(r + step_) % 4u]));
      [[unroll]] for (uint c = 0u; c < 4u; c++) ws[c] = w_operand(BITS(sums[c][(c + step_ + 1u) % 4u]));
      [[unroll]] for (uint r = 0u; r < 4u; r++) [[unroll]]
        for (uint c = 0u; c < 4u; c++) sums[r][c] += dot4x8(xs[r], ws[c]);
    }
  }
  return ivec4(sums[0]) ^ ivec4(sums[1]) ^ ivec4(sums[2]) ^ ivec4(sums[3]);
}

#elif OP == 1
ivec4 work(uint i) {
  vec4 sums[4];
  [[unroll]] for (uint r = 0u; r < 4u; r++) sums[r] = vec4(p.seed) + float(i + r);
  for (uint k = 0u; k < p.loops; k++)
    [[unroll]] for (uint step_ = 0u; step_ < STEPS; step_++)
      [[unroll]] for (uint r = 0u; r < 4u; r++) sums[r] = fma(sums[r], vec4(p.seed), vec4(1.0));
  return floatBitsToInt(sums[0] + sums[1] + sums[2] + sums[3]);
}
#endif

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
#if OP == 2
  for (uint k = 0u; k < p.loops; k++) y[i + k * p.groups * LOCAL_X] = x[i + k * p.groups * LOCAL_X];
#else
  y[i] = work(i);
#endif
}
