// Y[M,N] = X[M,K] W[N,K]^T in int8 with exact int32 accumulation for few rows: bound by reading the weights
// once, so many threads share the sum over k.
//
// Memory    x: kPackedInt8_4H4W blocks [group][m4][k4] (4 rows x 4 k); w: kPackedInt8_4N4K blocks [group][k4][n4];
//           y and channels: gemm_output.glslh. Neighbouring threads read neighbouring blocks of w.
// Threads   a workgroup is LOCAL_X column blocks x LOCAL_Y parts of k; an invocation sums blocks LOCAL_Y apart, UNROLL of them in
//           flight. Then a tree adds the parts.
// Needs     16 bytes of shared memory an invocation and row.
#version 450
#extension GL_EXT_control_flow_attributes : require
#if DOT != 3
#extension GL_EXT_integer_dot_product : require
#endif

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 4;
layout(constant_id = 1) const uint LOCAL_Y = 32;
// weight zero points need the sums of x (the u8u8 form always does)
layout(constant_id = 2) const bool ROW_SUMS = false;
layout(constant_id = 3) const uint ROWS = 4;          // of a block that are computed; the others are not read

layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) writeonly buffer Y { ivec4 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#define PART ivec4
#define UNROLL 4
#include "push.glslh"
#include "workgroup.glslh"
#include "dot4x8.glslh"
#include "gemm_output.glslh"
#include "split_sum.glslh"

const bool SUM_ROWS = ROW_SUMS || DOT == DOT_U8U8;
ivec4 acc[4];
ivec4 row_sums = ivec4(0);
Sum4 sums[4];
Sum4 x_sums = Sum4(0);

void add_block(ivec4 xs, ivec4 words) {
  WOperand ws[4];
  [[unroll]] for (int c = 0; c < 4; c++) ws[c] = w_operand(words[c]);
  [[unroll]] for (uint r = 0u; r < 4u; r++) {
    if (r >= ROWS) continue;
    XOperand xr = x_operand(xs[r]);
    [[unroll]] for (int c = 0; c < 4; c++) sums[r][c] += dot4x8(xr, ws[c]);
    if (SUM_ROWS) x_sums[r] += lane_sum(xr);
  }
}

// From the dot form's type to int32: for float lanes often enough that they stay exact.
void flush_sums() {
  [[unroll]] for (int r = 0; r < 4; r++) {
    acc[r] += ivec4(sums[r]);
    sums[r] = Sum4(0);
  }
  row_sums += ivec4(x_sums);
  x_sums = Sum4(0);
}

void main() {
  uint tiles_n = ceil_div(p.n4, LOCAL_X), tile = workgroup_index(), m4 = tile / tiles_n % p.m4, group = tile / tiles_n / p.m4;
  uint column = tile % tiles_n * LOCAL_X + gl_LocalInvocationID.x;
  uint x_base = (group * p.m4 + m4) * p.k4, w_base = group * p.k4 * p.n4 + min(column, p.n4 - 1u);

  [[unroll]] for (int r = 0; r < 4; r++) { acc[r] = ivec4(0); sums[r] = Sum4(0); }
  uint k = gl_LocalInvocationID.y, pending = 0u;
  for (; k + (UNROLL - 1) * LOCAL_Y < p.k4; k += UNROLL * LOCAL_Y) {
    ivec4 xs[UNROLL], ws[UNROLL];
    [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
      ws[i] = w[w_base + (k + i * LOCAL_Y) * p.n4];
      xs[i] = x[x_base + k + i * LOCAL_Y];
    }
    [[unroll]] for (int i = 0; i < UNROLL; i++) add_block(xs[i], ws[i]);
    pending += UNROLL;
    if (pending > WORDS_PER_FLUSH - 2 * UNROLL) { flush_sums(); pending = 0u; }
  }
  for (; k < p.k4; k += LOCAL_Y) add_block(x[x_base + k], w[w_base + k * p.n4]);  // fewer than UNROLL
  flush_sums();

  uint c4 = group * p.n4 + column;
  ivec4 all_row_sums[4];
  if (SUM_ROWS) {
    all_row_sums[0] = row_sums;
    sum_parts(all_row_sums, 1u);
  }
  sum_parts(acc, ROWS);
  if (gl_LocalInvocationID.y == 0u && column < p.n4 && c4 < p.y_c4) {
    [[unroll]] for (int r = 0; r < 4; r++) acc[r] = corrected(acc[r], SUM_ROWS ? all_row_sums[0][r] : 0, c4);
    store_block(p.first_m4 + m4, c4, acc);
  }
}
