// y = a op b of float32 numbers, each result rounded to nearest even on every device (exact_sum.glslh).
// Subnormal results may become zero; so may subnormal operands, except in quotients. MAX and MIN give NaN if
// an operand is NaN.
//
// Memory    a, b, y: float32, row-major. Element i of y is computed from a[i * a_step] and b[i * b_step];
//           a_step and b_step are 1, or 0 for an operand that is a single number.
// Threads   one invocation computes one number.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OP_ADD 0
#define OP_SUB 1
#define OP_MUL 2
#define OP_DIV 3
#define OP_MAX 4
#define OP_MIN 5

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer A { float a[]; };
layout(set = 0, binding = 1) readonly buffer B { float b[]; };
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;
  uint a_step, b_step;
} p;

#include "workgroup.glslh"
#include "real_numbers.glslh"

float product_of(float a, float b) {
  float product = multiply(abs(a), abs(b));
  uint exponents = (magnitude_of(a) >> 23) + (magnitude_of(b) >> 23);
  bool small = exponents < 127u || magnitude_of(product) < FLOAT_HIDDEN;
  return signed(SOFT_FLOAT && small ? 0.0 : product, a, b);
}

float combine(float a, float b) {
  float result;
  if (OP == OP_MUL) result = product_of(a, b);
  else if (OP == OP_DIV) result = divided(a, b);
  else if (OP == OP_MAX) result = larger(a, b);
  else if (OP == OP_MIN) result = -larger(-a, -b);
  else if (OP == OP_SUB) result = sum(a, -b);
  else result = sum(a, b);
  return result;
}

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) y[i] = combine(a[i * p.a_step], b[i * p.b_step]);
}
