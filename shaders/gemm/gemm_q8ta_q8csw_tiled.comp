// Y[M,N] = X[M,K] W[N,K]^T in int8 with exact int32 accumulation, for linear layers and for convolutions
// after im2col (1x1 convolutions directly); with `groups` independent products.
//
// Memory    x: kPackedInt8_4H4W blocks [group][m4][k4] (4 rows x 4 k); w: kPackedInt8_4N4K blocks
//           [group][k4][n4]; y and channels: gemm_output.glslh. With TEXELS, a block of x or w is one texel:
//           some GPUs load a texel in one instruction, but a buffer's words one by one.
// Threads   a workgroup is LOCAL_X x LOCAL_Y invocations; each computes TILE_M4 x TILE_N4 blocks of 4 x 4
//           results, LOCAL_X (LOCAL_Y) apart, so that neighbours load neighbouring blocks.
// Needs     nothing: every device runs it. No barrier; shared memory only for a long k in the float form.
//
//   y of a workgroup, TILE_M4 = TILE_N4 = 2: a cell is 4 x 4 results, its number
//   that of their invocation
//       LOCAL_X       LOCAL_X
//     +---+---+-   +---+---+-
//     | 0 | 1 |..  | 0 | 1 |..     LOCAL_Y     an invocation: sums of all its cells in registers, k after k;
//     +---+---+-   +---+---+-                  operands straight from memory
//     | 0 | 1 |..  | 0 | 1 |..     LOCAL_Y
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#ifndef FLOAT_LANES
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
// Compute the sums of x, which weight zero points need (and always the u8u8 form).
layout(constant_id = 2) const bool ROW_SUMS = false;

#ifdef TEXELS
layout(constant_id = 3) const uint UNROLL = 1;  // blocks along k that are read at once
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

#include "push.glslh"
#define INVOCATIONS (LOCAL_X * LOCAL_Y)
#define STEP_M LOCAL_Y
#define STEP_N LOCAL_X
#include "texels.glslh"
#include "workgroup.glslh"
#include "gemm_tile.glslh"

struct Tile {
  uint group, m4, n4;                 // position of the invocation's first block
  uint x_at[TILE_M4], w_at[TILE_N4];  // offsets of its operands at the current k
};

// Invocations beyond the edge compute the last block and do not store it.
Tile this_tile() {
  uint tiles_n = ceil_div(p.n4, LOCAL_X * TILE_N4), tiles_m = ceil_div(p.m4, LOCAL_Y * TILE_M4);
  uint index = workgroup_index(), tile_m = index / tiles_n;
  Tile t;
  t.group = tile_m / tiles_m;
  t.n4 = (index - tile_m * tiles_n) * LOCAL_X * TILE_N4 + gl_LocalInvocationID.x;
  t.m4 = (tile_m - t.group * tiles_m) * LOCAL_Y * TILE_M4 + gl_LocalInvocationID.y;
  [[unroll]] for (int i = 0; i < TILE_M4; i++)
    t.x_at[i] = (t.group * p.m4 + min(t.m4 + uint(i) * LOCAL_Y, p.m4 - 1u)) * p.k4;
  [[unroll]] for (int j = 0; j < TILE_N4; j++)
    t.w_at[j] = t.group * p.k4 * p.n4 + min(t.n4 + uint(j) * LOCAL_X, p.n4 - 1u);
  return t;
}

#ifdef TEXELS
// Add the products of `count` blocks along k (at most UNROLL) from the position `t` on, and advance `t` past
// them. All blocks are read before any sum is updated: lavapipe calls a function for a texel, and spills all
// sums before the call. The driver unrolls these loops; if the SPIR-V compiler did, lavapipe would copy all
// sums in each iteration.
void multiply_blocks(inout Tile t, const uint count) {
  ivec4 ws[UNROLL][TILE_N4], xs[UNROLL][TILE_M4];
  [[unroll]] for (uint k = 0u; k < count; k++) {
    [[unroll]] for (int j = 0; j < TILE_N4; j++) {
      ws[k][j] = LOAD(w, t.w_at[j]);
      t.w_at[j] += p.n4;
    }
    [[unroll]] for (int i = 0; i < TILE_M4; i++) xs[k][i] = LOAD(x, t.x_at[i]++);
  }
  [[unroll]] for (int r = 0; r < TILE_M4 * 4; r++) {
    [[unroll]] for (int c = 0; c < TILE_N4 * 4; c++)
      [[unroll]] for (uint k = 0u; k < count; k++)
        sums[r][c / 4][c % 4] += dot4x8(x_operand(xs[k][r / 4][r % 4]), w_operand(ws[k][c / 4][c % 4]));
    if (SUM_ROWS)
      [[unroll]] for (uint k = 0u; k < count; k++)
        x_sums[r / 4][r % 4] += lane_sum(x_operand(xs[k][r / 4][r % 4]));
  }
}

void multiply(inout Tile t, uint blocks) {
  for (uint turn = blocks / UNROLL; turn > 0u; turn--) multiply_blocks(t, UNROLL);
  for (uint left = blocks % UNROLL; left > 0u; left--) multiply_blocks(t, 1u);
}

#else
// Add the products of the blocks at `t`, and advance `t` to the next k.
void multiply_step(inout Tile t) {
  WOperand ws[TILE_N4 * 4];
  [[unroll]] for (int j = 0; j < TILE_N4; j++) {
    ivec4 words = LOAD(w, t.w_at[j]);
    t.w_at[j] += p.n4;
    [[unroll]] for (int c = 0; c < 4; c++) ws[j * 4 + c] = w_operand(words[c]);
  }
  [[unroll]] for (int i = 0; i < TILE_M4; i++) {
    ivec4 words = LOAD(x, t.x_at[i]);
    t.x_at[i]++;
    [[unroll]] for (int r = 0; r < 4; r++) {
      XOperand xr = x_operand(words[r]);
      [[unroll]] for (int j = 0; j < TILE_N4; j++)
        [[unroll]] for (int c = 0; c < 4; c++) sums[i * 4 + r][j][c] += dot4x8(xr, ws[j * 4 + c]);
      if (SUM_ROWS) x_sums[i][r] += lane_sum(xr);
    }
  }
}

void multiply(inout Tile t, uint steps) {
  for (uint k = 0u; k < steps; k++) multiply_step(t);
}
#endif

void main() {
  Tile t = this_tile();
  clear_long_sums();
  if (LONG_K) {
    for (uint left = p.k4; left > 0u;) {
      uint steps = min(left, WORDS_PER_FLUSH);
      multiply(t, steps);
      flush_sums();
      left -= steps;
    }
  } else {
    multiply(t, p.k4);
  }
  store_tile(t.group, t.m4, t.n4);
}
