// Y[M,N] = X[M,K] W[N,K]^T in int8 with exact int32 accumulation for few rows. Reading the weights limits the
// speed, so many threads share the sum over k.
//
// Memory    x: kPackedInt8_4H4W blocks [group][m4][k4] (4 rows x 4 k); w: kPackedInt8_4N4K blocks
//           [group][k4][n4]; y and channels: gemm_output.glslh. Neighbouring threads read neighbouring blocks
//           of w.
// Threads   a workgroup is LOCAL_X column blocks x LOCAL_Y parts of k; an invocation sums blocks LOCAL_Y
//           apart, UNROLL of them in flight. Then a tree adds the parts. For a single row, only its own words
//           of a block are read, except with TEXELS, where a block is one texel.
// Needs     16 bytes of shared memory for each invocation and row.
//
//     k -->      0   1   2  ..  LOCAL_Y-1   0   1  ..     blocks of k: which part sums them
//             +---+---+---+---+-----------+---+---+---
//   LOCAL_X   |   |   |   |   |           |   |   |       w: an invocation sums a part of k for one block of
//   blocks    |   |   |   |   |           |   |   |       four columns, with ROWS x 4 sums in registers
//             +---+---+---+---+-----------+---+---+---
//               the sums of LOCAL_Y parts: shared memory, a tree --> y, ROWS x 4 LOCAL_X
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#ifndef FLOAT_LANES
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 4;
layout(constant_id = 1) const uint LOCAL_Y = 32;
// Compute the sums of x, which weight zero points need (and always the u8u8 form).
layout(constant_id = 2) const bool ROW_SUMS = false;
layout(constant_id = 3) const uint UNROLL = 4;

#ifdef TEXELS
layout(set = 0, binding = 0) uniform isamplerBuffer x;
layout(set = 0, binding = 1) uniform isamplerBuffer w;
layout(set = 0, binding = 2) uniform isamplerBuffer channels;
#else
layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#endif
#if OUT == 1
layout(set = 0, binding = 3) buffer Y { ivec4 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#define PART ivec4
#define MOST_ROWS 4
#define MOST_LONG_SUMS (MOST_ROWS + 1)
#define LONG_SUMS_IN_REGISTERS
#include "push.glslh"
#include "texels.glslh"
#include "workgroup.glslh"
#include "dot4x8.glslh"
#include "gemm_output.glslh"
#include "split_sum.glslh"
#include "long_sum.glslh"

const bool SUM_ROWS = ROW_SUMS || DOT == DOT_U8U8;
#define X_SUM MOST_ROWS  // index of the sums of x among the long sums
// Every loop over rows goes to MOST_ROWS, so that the SPIR-V compiler splits the arrays into registers: some
// drivers keep arrays in memory that a loop up to ROWS indexes. Sums beyond ROWS stay zero.
Sum4 sums[MOST_ROWS] = {}, x_sums = Sum4(0);

void add_block(ivec4 xs, ivec4 words) {
  WOperand ws[4];
  [[unroll]] for (int c = 0; c < 4; c++) ws[c] = w_operand(words[c]);
  [[unroll]] for (int r = 0; r < MOST_ROWS; r++) {
    XOperand xr = x_operand(xs[r]);
    [[unroll]] for (int c = 0; c < 4; c++)
      if (r < ROWS) sums[r][c] += dot4x8(xr, ws[c]);
    if (r < ROWS) x_sums[r] += lane_sum(xr);  // removed by the compiler where SUM_ROWS is false
  }
}

void flush_sums() {
  [[unroll]] for (int r = 0; r < MOST_ROWS; r++) flush_sum(sums[r], r);
  flush_sum(x_sums, X_SUM);
}

// Sum this invocation's part of k, from the blocks at x_at and w_at on. The first loop has the same number of
// iterations in all invocations, so that none is masked.
void multiply(uint x_at, uint w_at) {
  uint x_step = LOCAL_Y, w_step = LOCAL_Y * p.n4, turns = p.k4 / (UNROLL * LOCAL_Y);
  uint w_steps[UNROLL];  // multiplied here, not in every iteration
  [[unroll]] for (uint i = 0u; i < UNROLL; i++) w_steps[i] = i * w_step;
  for (uint turn = 1u; turn <= turns; turn++) {
    int x_words[UNROLL];  // of a single row, read only its own words
    ivec4 xs[UNROLL], ws[UNROLL];
    [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
      ws[i] = LOAD(w, w_at + w_steps[i]);
      if (ROWS == 1) x_words[i] = LOAD(x, x_at + i * x_step).x;
      else xs[i] = LOAD(x, x_at + i * x_step);
    }
    w_at += UNROLL * w_step;
    x_at += UNROLL * x_step;
    [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
      ivec4 block;
      if (ROWS == 1) block = ivec4(x_words[i], 0, 0, 0);
      else block = xs[i];
      add_block(block, ws[i]);
    }
    if (LONG_K && turn % (WORDS_PER_FLUSH / UNROLL - 1u) == 0u) flush_sums();
  }
  // Fewer than UNROLL blocks are left.
  for (uint k = turns * UNROLL * LOCAL_Y + gl_LocalInvocationID.y; k < p.k4; k += LOCAL_Y) {
    add_block(LOAD(x, x_at), LOAD(w, w_at));
    x_at += x_step;
    w_at += w_step;
  }
  if (LONG_K) flush_sums();
}

void main() {
  uint tiles_n = ceil_div(p.n4, LOCAL_X), tile = workgroup_index(), row_block = tile / tiles_n;
  uint group = row_block / p.m4, m4 = row_block - group * p.m4;
  uint column = (tile - row_block * tiles_n) * LOCAL_X + gl_LocalInvocationID.x, c4 = group * p.n4 + column;
  uint w_column = group * p.k4 * p.n4 + min(column, p.n4 - 1u), part = gl_LocalInvocationID.y;
  multiply(row_block * p.k4 + part, w_column + part * p.n4);

  ivec4 rows[MOST_ROWS], row_sums[MOST_ROWS] = {};
  [[unroll]] for (int r = 0; r < MOST_ROWS; r++) rows[r] = total(sums[r], r);
  sum_parts(rows);
  if (SUM_ROWS) {
    row_sums[0] = total(x_sums, X_SUM);
    sum_parts(row_sums);
  }
  if (part == 0u && column < p.n4 && c4 < p.y_c4) {
    ivec4 results[4];  // rows that are not computed are undefined
    [[unroll]] for (int r = 0; r < 4; r++)
      results[r] = corrected(r < ROWS ? rows[r] : rows[0], row_sums[0][r], c4);
    store_block(p.first_m4 + m4, c4, results);
  }
}
