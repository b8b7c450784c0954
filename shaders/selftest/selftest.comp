// Self-test of the arithmetic of every int8 kernel, on values whose results the host knows
// (probe/selftest.py).
//
// Each test has two results, y[i].x and y[i].y:
//
// TEST 0    y[i].x: the int8 dot product of the four bytes of x[i] and w[i]; y[i].y: the sum of the bytes of
//           x[i]. Dot forms with unsigned operands add 128 to an operand; the shader subtracts the terms that
//           this adds to the results.
// TEST 1    y[i].x: requantize(x[i], multiplier); y[i].y: the bits of float(x[i]) * multiplier. w[i] holds
//           the bits of the multiplier.
// TEST 2    y[i].x: round_half_even(x[i] / w[i]), quantization without the zero point; y[i].y: 0. x[i] and
//           w[i] hold the bits of floats.
#version 450
#if TEST == 0 && !defined(FLOAT_LANES)
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer W { int w[]; };
layout(set = 0, binding = 2) writeonly buffer Y { ivec2 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;
} p;

#include "workgroup.glslh"
#if TEST == 0
#include "dot4x8.glslh"
const int X_SHIFT = DOT == DOT_U8S8 || DOT == DOT_U8U8 ? 128 : 0, W_SHIFT = DOT == DOT_U8U8 ? 128 : 0;

// sum of (x + a)(w + b) over four bytes = xw + a sum w + b sum x + 4ab
ivec2 result(uint i) {
  XOperand xo = x_operand(x[i]);
  WOperand wo = w_operand(w[i]);
  ivec4 lanes = int8x4_unpack(w[i]);
  int row_sum = int(lane_sum(xo)) - 4 * X_SHIFT;
  return ivec2(int(dot4x8(xo, wo)) - X_SHIFT * (lanes.x + lanes.y + lanes.z + lanes.w) - W_SHIFT * row_sum -
                   4 * X_SHIFT * W_SHIFT,
      row_sum);
}
#elif TEST == 2
#include "exact_float.glslh"
ivec2 result(uint i) { return ivec2(quantized_quotient(uint(x[i]), uint(w[i])), 0); }
#else
#include "requantize.glslh"
ivec2 result(uint i) {
  float multiplier = intBitsToFloat(w[i]);
  return ivec2(
      requantize(x[i], multiplier, 0, -128, 127), floatBitsToInt(multiply(int_to_float(x[i]), multiplier)));
}
#endif

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) y[i] = result(i);
}
