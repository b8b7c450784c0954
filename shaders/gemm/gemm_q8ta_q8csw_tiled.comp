// Y[M,N] = X[M,K] W[N,K]^T in int8 with exact int32 accumulation, for linear layers and (after im2col, or
// directly for 1x1) convolutions; `groups` independent products side by side.
//
// Memory    x: kPackedInt8_4H4W blocks [group][m4][k4] (4 rows x 4 k); w: kPackedInt8_4N4K blocks [group][k4][n4];
//           y and channels: gemm_output.glslh.
// Threads   a workgroup is LOCAL_X x LOCAL_Y invocations; each computes TILE_M4 x TILE_N4 blocks of 4 x 4 results. Its blocks lie
//           LOCAL_X (LOCAL_Y) apart, so that neighbours load neighbouring blocks.
// Needs     no shared memory and no barrier: the floor that every device runs.
#version 450
#extension GL_EXT_control_flow_attributes : require
#if DOT != 3
#extension GL_EXT_integer_dot_product : require
#endif

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
// weight zero points need the sums of x (the u8u8 form always does)
layout(constant_id = 2) const bool ROW_SUMS = false;

layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) writeonly buffer Y { ivec4 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#include "dot4x8.glslh"
#include "gemm_output.glslh"

const bool SUM_ROWS = ROW_SUMS || DOT == DOT_U8U8;
ivec4 acc[TILE_M4 * 4][TILE_N4];
ivec4 row_sums[TILE_M4];

void clear() {
  [[unroll]] for (int i = 0; i < TILE_M4; i++) {
    row_sums[i] = ivec4(0);
    [[unroll]] for (int r = 0; r < 4; r++) [[unroll]] for (int j = 0; j < TILE_N4; j++) acc[i * 4 + r][j] = ivec4(0);
  }
}

// Adds the products of k blocks [first, last) to acc.
void accumulate(uint x_base[TILE_M4], uint w_base[TILE_N4], uint first, uint last) {
  Sum4 sums[TILE_M4 * 4][TILE_N4];
  Sum4 x_sums[TILE_M4];
  [[unroll]] for (int i = 0; i < TILE_M4; i++) {
    x_sums[i] = Sum4(0);
    [[unroll]] for (int r = 0; r < 4; r++) [[unroll]] for (int j = 0; j < TILE_N4; j++) sums[i * 4 + r][j] = Sum4(0);
  }
  for (uint k = first; k < last; k++) {
    WOperand ws[TILE_N4 * 4];
    [[unroll]] for (int j = 0; j < TILE_N4; j++) {
      ivec4 words = w[w_base[j] + k * p.n4];
      [[unroll]] for (int c = 0; c < 4; c++) ws[j * 4 + c] = w_operand(words[c]);
    }
    [[unroll]] for (int i = 0; i < TILE_M4; i++) {
      ivec4 words = x[x_base[i] + k];
      [[unroll]] for (int r = 0; r < 4; r++) {
        XOperand xr = x_operand(words[r]);
        [[unroll]] for (int j = 0; j < TILE_N4; j++) [[unroll]] for (int c = 0; c < 4; c++) sums[i * 4 + r][j][c] += dot4x8(xr, ws[j * 4 + c]);
        if (SUM_ROWS) x_sums[i][r] += lane_sum(xr);
      }
    }
  }
  [[unroll]] for (int i = 0; i < TILE_M4; i++) {
    row_sums[i] += ivec4(x_sums[i]);
    [[unroll]] for (int r = 0; r < 4; r++) [[unroll]] for (int j = 0; j < TILE_N4; j++) acc[i * 4 + r][j] += ivec4(sums[i * 4 + r][j]);
  }
}

void main() {
  uint tiles_n = ceil_div(p.n4, LOCAL_X * TILE_N4), tiles_m = ceil_div(p.m4, LOCAL_Y * TILE_M4);
  uint tile = workgroup_index(), group = tile / (tiles_n * tiles_m);
  uint n4 = tile % tiles_n * LOCAL_X * TILE_N4 + gl_LocalInvocationID.x;
  uint m4 = tile / tiles_n % tiles_m * LOCAL_Y * TILE_M4 + gl_LocalInvocationID.y;

  // Blocks beyond the edge are computed from the last block and not stored.
  uint x_base[TILE_M4], w_base[TILE_N4];
  [[unroll]] for (int i = 0; i < TILE_M4; i++) x_base[i] = (group * p.m4 + min(m4 + uint(i) * LOCAL_Y, p.m4 - 1u)) * p.k4;
  [[unroll]] for (int j = 0; j < TILE_N4; j++) w_base[j] = group * p.k4 * p.n4 + min(n4 + uint(j) * LOCAL_X, p.n4 - 1u);

  clear();
  for (uint k = 0u; k < p.k4;) {
    uint last = min(p.k4 - k, WORDS_PER_FLUSH) + k;
    accumulate(x_base, w_base, k, last);
    k = last;
  }

  [[unroll]] for (int i = 0; i < TILE_M4; i++) [[unroll]] for (int j = 0; j < TILE_N4; j++) {
    uint row = m4 + uint(i) * LOCAL_Y, column = n4 + uint(j) * LOCAL_X, c4 = group * p.n4 + column;
    if (row >= p.m4 || column >= p.n4 || c4 >= p.y_c4) continue;
    ivec4 rows[4];
    [[unroll]] for (int r = 0; r < 4; r++) rows[r] = corrected(acc[i * 4 + r][j], row_sums[i][r], c4);
    store_block(p.first_m4 + row, c4, rows);
  }
}
