// y = (a - a_zero) (b - b_zero)^T for each matrix of a batch, as in matmul_q8.comp, but with packed dot
// products. Every block of four rows, and of four columns, must belong to one matrix: m and n are multiples
// of 4, or the batch is 1.
//   OUT_F32   y = float(acc) * multiplier, row-major
//   OUT_Q8    y = saturate(round_half_even(float(acc) * multiplier) + y_zero)
//
// Memory    a: (batch * m, k), b: (batch * n, k), y: (batch * m, n): int8 in kPackedInt8_4H4W, whose blocks
//           [row/4][k/4] of 4 rows x 4 k are ivec4. Padding along k is masked, so it may hold any number. If
//           A_HEADS > 1, the matrices of A_HEADS heads lie side by side in a: its shape is (batch / heads *
//           m, heads * k) and k is a multiple of 4. B_HEADS and Y_HEADS do the same for b (k a multiple of 4)
//           and y (n a multiple of 4).
// Threads   one invocation computes four rows x four columns; neighbouring invocations share the rows:
//
//             b:  columns 4c .. 4c+3      an ivec4 of b is 4 columns x 4 k
//           a: +--+
//     rows  |  |  |  16 dots for two loads: acc[row][column] = sum a' b' - b_zero sum a' - a_zero sum b'
//     4r .. +--+                            + k a_zero b_zero, where ' is the shift by 128 of the dot form
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require

#define OUT_F32 0
#define OUT_Q8 1

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const uint A_HEADS = 1;
layout(constant_id = 2) const uint B_HEADS = 1;
layout(constant_id = 3) const uint Y_HEADS = 1;

layout(set = 0, binding = 0) readonly buffer A { ivec4 a[]; };
layout(set = 0, binding = 1) readonly buffer B { ivec4 b[]; };
#if OUT == OUT_F32
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
#else
layout(set = 0, binding = 2) writeonly buffer Y { ivec4 y[]; };
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint batch, m, n, k;
  int a_zero, b_zero, y_zero;  // a_zero and b_zero include the shift of the dot form
  float multiplier;
} p;

#include "workgroup.glslh"
#include "dot4x8.glslh"
#include "dot_block.glslh"
#include "requantize.glslh"

const uint TURNS = 4u;  // blocks along k in one iteration: some drivers abort loops with many iterations
void add_up(inout Block block, uint a_at, uint b_at) {
  uint blocks = ceil_div(p.k, 4u);
  int last = last_mask(p.k);
  for (uint first = 0u; first < blocks; first += TURNS) {
    ivec4 xs[TURNS], ws[TURNS];
    [[unroll]] for (uint turn = 0u; turn < TURNS; turn++) {
      uint four = min(first + turn, blocks - 1u);
      xs[turn] = a[a_at + four];
      ws[turn] = b[b_at + four];
    }
    [[unroll]] for (uint turn = 0u; turn < TURNS; turn++) {
      uint four = first + turn;
      add_block(block, xs[turn], ws[turn], four + 1u < blocks ? -1 : four < blocks ? last : 0);
    }
  }
}

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uint m4 = ceil_div(p.m, 4u), n4 = ceil_div(p.n, 4u), k4 = ceil_div(p.k, 4u);
  uint four = i / n4, column = i % n4;
  if (four >= p.batch * m4) return;
  Block block;
  clear(block);
  add_up(block, row_at(four, m4, A_HEADS, k4), row_at(four / m4 * n4 + column, n4, B_HEADS, k4));
  ivec4 words;
  [[unroll]] for (uint r = 0u; r < 4u; r++) {
    ivec4 acc = exact_sums(block, r, p.a_zero, p.b_zero, p.k);
#if OUT == OUT_F32
    uint row = four * 4u + r;
    [[unroll]] for (uint j = 0u; j < 4u; j++)
      if (row < p.batch * p.m && column * 4u + j < p.n)
        y[row * p.n + column * 4u + j] = multiply(int_to_float(acc[j]), p.multiplier);
#else
    words[r] = requantize4(acc, vec4(p.multiplier), p.y_zero, -128, 127);
#endif
  }
#if OUT == OUT_Q8
  y[row_at(four, m4, Y_HEADS, n4) + column] = words;
#endif
}
