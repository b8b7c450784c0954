// y = (a - a_zero) (b - b_zero)^T for each matrix of a batch; both operands are int8 activations: ONNX
// QLinearMatMul without a constant operand.
//   OUT_F32   y = float(acc) * multiplier, row-major
//   OUT_Q8    y = saturate(round_half_even(float(acc) * multiplier) + y_zero)
//   OUT_I32   y = acc, row-major. Buffers hold the zero points: one a_zero, or one for each row of a (m or
//             batch * m); one b_zero, or one for each column of y
//
// Memory    a: (batch * m, k), b: (batch * n, k), int8 in kPackedInt8_4H4W; y: (batch * m, n), with OUT_Q8
//           also in kPackedInt8_4H4W; zero points: one row of int8 in kPackedInt8_4H4W.
// Threads   one invocation computes four columns of one row. Padding along k is masked, so it may hold any
//           number.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OUT_F32 0
#define OUT_Q8 1
#define OUT_I32 2

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
const uint TURNS = 4u;  // words along k in one iteration: some drivers abort loops with many iterations

layout(set = 0, binding = 0) readonly buffer A { int a[]; };
layout(set = 0, binding = 1) readonly buffer B { int b[]; };
#if OUT == OUT_F32
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
#else
layout(set = 0, binding = 2) writeonly buffer Y { int y[]; };
#endif

#if OUT == OUT_I32
layout(set = 0, binding = 3) readonly buffer AZero { int a_zero[]; };
layout(set = 0, binding = 4) readonly buffer BZero { int b_zero[]; };
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint batch, m, n, k;
#if OUT == OUT_I32
  uint a_zeros, b_zeros;  // number of zero points of a and of b
#else
  int a_zero, b_zero, y_zero;
  float multiplier;
#endif
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "requantize.glslh"
#include "layout/kPackedInt8_4H4W.glslh"

#if OUT == OUT_I32
#define ZERO_OF(words, count, i)                                                                             \
  int8x4_lane(words[kPackedInt8_4H4W_word(uvec4(0u, 0u, 0u, i), uvec4(1u, 1u, 1u, count))],                  \
              kPackedInt8_4H4W_lane(uvec4(0u, 0u, 0u, i)))
int zero_of_row(uint row) { return ZERO_OF(a_zero, p.a_zeros, row % p.a_zeros); }
int zero_of_column(uint column) { return ZERO_OF(b_zero, p.b_zeros, column % p.b_zeros); }
#else
int zero_of_row(uint row) { return p.a_zero; }
int zero_of_column(uint column) { return p.b_zero; }
#endif

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x, n4 = ceil_div(p.n, 4u), rows = p.batch * p.m;
  uint row = i / n4, column = i % n4 * 4u;
  if (row < rows) {
    uvec4 a_extent = uvec4(1u, 1u, rows, p.k), b_extent = uvec4(1u, 1u, p.batch * p.n, p.k),
          y_extent = uvec4(1u, 1u, rows, p.n);
    uint b_row = row / p.m * p.n + column;
    ivec4 acc = ivec4(0), zeros;
    int row_zero = zero_of_row(row);
    [[unroll]] for (uint j = 0u; j < 4u; j++) zeros[j] = zero_of_column(column + j);
    for (uint first = 0u; first < p.k; first += 4u * TURNS)
      [[unroll]] for (uint turn = 0u; turn < TURNS; turn++) {
        uint k = first + 4u * turn, word = min(k, p.k - 1u);
        ivec4 inside = ivec4(lessThan(uvec4(k) + uvec4(0u, 1u, 2u, 3u), uvec4(p.k)));
        ivec4 va =
            (int8x4_unpack(a[kPackedInt8_4H4W_word(uvec4(0u, 0u, row, word), a_extent)]) - row_zero) * inside;
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
          uint line = min(b_row + j, b_extent.z - 1u);
          ivec4 product =
              va * (int8x4_unpack(b[kPackedInt8_4H4W_word(uvec4(0u, 0u, line, word), b_extent)]) - zeros[j]);
          acc[j] += product.x + product.y + product.z + product.w;
        }
      }
#if OUT == OUT_F32
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
      if (column + j < p.n) y[row * p.n + column + j] = multiply(int_to_float(acc[j]), p.multiplier);
    }
#elif OUT == OUT_I32
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
      if (column + j < p.n) y[row * p.n + column + j] = acc[j];
    }
#else
    ivec4 q;
    [[unroll]] for (uint j = 0u; j < 4u; j++) q[j] = requantize(acc[j], p.multiplier, p.y_zero, -128, 127);
    y[kPackedInt8_4H4W_word(uvec4(0u, 0u, row, column), y_extent)] = int8x4_pack(q);
#endif
  }
}
