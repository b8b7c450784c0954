// What a row of float32 numbers makes: its sum, or of rows of one number its square root; the float32 number
// of an int32 one.
//   SUM   compensated (Neumaier), each step rounded to nearest even: within 2^-23 of the sum of magnitudes,
//         as long as rows are shorter than 2^20
//   SQRT  rounded to nearest even, digit by digit in integers: no device promises it
//   CAST  rounded to nearest even, of an int32 number
//
// Memory    x: rows one after the other; y: a number for each.
// Threads   one invocation computes one number.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OP_SUM 0
#define OP_SQRT 1
#define OP_CAST 2

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

#if OP == OP_CAST
layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#endif
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint rows, columns;
} p;

#include "workgroup.glslh"
#include "exact_sum.glslh"

#if OP == OP_CAST
float result_of(uint row) { return int_to_float(x[row]); }
#elif OP == OP_SQRT
float result_of(uint row) {
  uint bits = floatBitsToUint(x[row]);
  if (bits << 1 == 0u || bits == FLOAT_INFINITY) return x[row];  // -0 is its own root
  if (bits > FLOAT_INFINITY) return uintBitsToFloat(0x7fc00000u);
  Scaled n = normalized(bits);
  int exponent = n.exponent - 127;
  // 1 <= m < 4 as 2^-50 times a number of 52 bits, whose highest come first; exponent becomes even
  bool odd = (exponent & 1) != 0;
  uint m = n.significand, root = 0u, rest = 0u;
  int place = odd ? 28 : 27;
  for (int at = 50; at >= 0; at -= 2) {
    int right = at - place;
    uint two = right >= 0 ? (m >> uint(right)) & 3u : right == -1 ? (m << 1) & 3u : 0u;
    rest = (rest << 2) | two;
    uint trial = (root << 2) | 1u;
    root <<= 1;
    if (rest >= trial) { rest -= trial; root |= 1u; }
  }
  return compose(0u, (exponent - int(odd)) / 2 + 125, root, rest != 0u);
}
#else
float result_of(uint row) {
  float total = 0.0, lost = 0.0;
  for (uint k = 0u; k < p.columns; k++) {
    float v = x[row * p.columns + k], next = sum(total, v);
    bool larger = abs(total) >= abs(v);
    lost = sum(lost, sum(sum(larger ? total : v, -next), larger ? v : total));
    total = next;
  }
  bool finite = (floatBitsToUint(total) & FLOAT_INFINITY) != FLOAT_INFINITY;
  return finite ? sum(total, lost) : total;  // what an infinity loses is NaN
}
#endif

void main() {
  uint row = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (row < p.rows) y[row] = result_of(row);
}
