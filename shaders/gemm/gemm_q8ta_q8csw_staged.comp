// Y[M,N] = X[M,K] W[N,K]^T in int8 with exact int32 accumulation through shared memory, for matrices and
// (CONV) as an implicit GEMM: the rows of X are gathered from an image while the tile is loaded, without an
// im2col matrix.
//
// Memory    x: kPackedInt8_4H4W blocks [group][m4][k4], or the kPackedInt8_4W4C image with k = (kh, kw, ic);
//           w: kPackedInt8_4N4K blocks [group][k4][n4]; y and channels: gemm_output.glslh. Shared memory
//           holds two K tiles of KT blocks, the current one and the next, so that a K tile needs one barrier.
// Threads   a workgroup of LX x LY invocations computes LY * TILE_M4 x LX * TILE_N4 blocks of 4 x 4 results;
//           an invocation computes TILE_M4 x TILE_N4 of them, LY (LX) apart.
// Needs     16 KiB of shared memory at most, 256 invocations for the large tile.
//
//                       w tile: KT blocks of k x LX * TILE_N4
//   x tile:        +---------------+---------------+    y of a workgroup, TILE_M4 = TILE_N4 = 2: a cell is
//   LY * TILE_M4   | 0 1 .. (LX)   | 0 1 .. (LX)   |    4 x 4 results, its number that of their invocation
//   x KT blocks    | .. (LY)       |               |
//   of k           +---------------+---------------+    shared memory: this K tile and the next
//                  | 0 1 .. (LX)   | 0 1 .. (LX)   |    registers: sums, and the K tile after it
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#ifndef FLOAT_LANES
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x = LX, local_size_y = LY) in;
// Compute the sums of x, which weight zero points need (and always the u8u8 form).
layout(constant_id = 2) const bool ROW_SUMS = false;

#if CONV
layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
#endif
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) buffer Y { ivec4 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#include "push.glslh"
#define INVOCATIONS (LX * LY)
#define STEP_M LY
#define STEP_N LX
#define LONG_SUMS_IN_REGISTERS
#include "workgroup.glslh"
#include "gemm_tile.glslh"

#define BM4 (LY * TILE_M4)
#define BN4 (LX * TILE_N4)
#define X_ITEMS (BM4 * KT / INVOCATIONS)
#define W_ITEMS (BN4 * KT / INVOCATIONS)
shared ivec4 x_tile[2 * KT * BM4];  // [stage][k][m4 ^ k]: neighbours along k are in other banks
shared ivec4 w_tile[2 * KT * BN4];  // [stage][k][n4]

ivec4 next_x[X_ITEMS], next_w[W_ITEMS];
uint w_at[W_ITEMS];  // columns of w

#if CONV
#include "conv_gather.glslh"
#else
uint x_at[X_ITEMS];
void begin_x(uint group, uint m4) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    x_at[i] = (group * p.m4 + min(m4 + (gl_LocalInvocationIndex + i * INVOCATIONS) / KT, p.m4 - 1u)) * p.k4;
}
void load_x(uint k) {  // beyond k, load the last block; w_tile is zero there
  uint k_mine = min(k + gl_LocalInvocationIndex % KT, p.k4 - 1u);
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) next_x[i] = x[x_at[i] + k_mine];
}
#endif

void begin_w(uint n4) {
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++)
    w_at[i] = min(n4 + (gl_LocalInvocationIndex + i * INVOCATIONS) % BN4, p.n4 - 1u);
}

void load_w(uint group, uint k) {
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint k_mine = min(k + (gl_LocalInvocationIndex + i * INVOCATIONS) / BN4, p.k4 - 1u);
    next_w[i] = w[(group * p.k4 + k_mine) * p.n4 + w_at[i]];
  }
}

// Shift operands for the unsigned forms once, at the store, not at every use.
#ifdef FLOAT_LANES
const int X_BITS = 0, W_BITS = 0;
#define x_staged(word) int8x4_unpack_float(word)
#define w_staged(word) int8x4_unpack_float(word)
#else
const int X_BITS = X_UNSIGNED ? SIGN_BITS : 0, W_BITS = W_UNSIGNED ? SIGN_BITS : 0;
#define x_staged(word) (word)
#define w_staged(word) (word)
#endif

void store_tiles(uint stage) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) {
    uint item = gl_LocalInvocationIndex + i * INVOCATIONS, k = item % KT;
    x_tile[(stage * KT + k) * BM4 + (item / KT ^ k)] = next_x[i] ^ X_BITS;
  }
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    w_tile[stage * KT * BN4 + gl_LocalInvocationIndex + i * INVOCATIONS] = next_w[i] ^ W_BITS;
  }
}

void multiply_step(uint stage, uint k) {
  WOperand ws[TILE_N4 * 4];
  [[unroll]] for (uint j = 0u; j < TILE_N4; j++) {
    ivec4 words = w_tile[(stage * KT + k) * BN4 + gl_LocalInvocationID.x + j * LX];
    [[unroll]] for (uint c = 0u; c < 4u; c++) ws[j * 4u + c] = w_staged(words[c]);
  }
  [[unroll]] for (uint i = 0u; i < TILE_M4; i++) {
    ivec4 words = x_tile[(stage * KT + k) * BM4 + ((gl_LocalInvocationID.y + i * LY) ^ k)];
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
      XOperand xr = x_staged(words[r]);
      [[unroll]] for (uint j = 0u; j < TILE_N4; j++)
        [[unroll]] for (uint c = 0u; c < 4u; c++) sums[i * 4u + r][j][c] += dot4x8(xr, ws[j * 4u + c]);
      if (SUM_ROWS) x_sums[i][r] += lane_sum(xr);
    }
  }
}

void main() {
  uint tiles_n = ceil_div(p.n4, BN4), tiles_m = ceil_div(p.m4, BM4);
  uint index = workgroup_index(), group = index / (tiles_n * tiles_m);
  uint n4 = index % tiles_n * BN4, m4 = index / tiles_n % tiles_m * BM4;

  begin_x(group, m4);
  begin_w(n4);
  uint stage = 0u;
  for (uint k = 0u; k < p.k4; k += KT) {
    if (k == 0u) {
      load_x(0u);
      load_w(group, 0u);
      store_tiles(0u);
    }
    barrier();  // this tile is stored, and the other tile has been read
    bool more = k + KT < p.k4;
    if (more) {
      load_x(k + KT);
      load_w(group, k + KT);
    }
    if (k + KT <= p.k4) {
      [[unroll]] for (uint i = 0u; i < KT; i++) multiply_step(stage, i);
    } else {
      for (uint i = 0u; i < p.k4 - k; i++) multiply_step(stage, i);
    }
    stage ^= 1u;
    if (more) store_tiles(stage);
    if (LONG_K && (k / KT + 1u) % (WORDS_PER_FLUSH / KT) == 0u) flush_sums();
  }
  if (LONG_K) flush_sums();
  store_tile(group, m4 + gl_LocalInvocationID.y, n4 + gl_LocalInvocationID.x);
}
