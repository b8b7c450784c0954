// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] through shared memory: float32 activations, int8 weights
// converted to floats once for each tile, float32 sums. For matrices and (CONV) as an implicit GEMM: x is
// gathered from an image while the tile is loaded, without an im2col matrix.
//
// Memory    x: float32 rows [group][m][k], or NCHW with k = (kh, kw, channel of the group); w:
//           kPackedInt8_4N4K blocks [group][k4][n4]; channels and y: float_output.glslh. Shared memory holds
//           one step of KT k for each slice of k, while the next step is in registers.
// Threads   a workgroup is LX x LY invocations x SLICES slices of k and computes LM * TILE_M4 x LN * TILE_N4
//           blocks of 4 x 4 results; an invocation computes TILE_M4 x TILE_N4 of them, LM (LN) apart. The
//           slices' sums are added in order at the end. Neighbours along x have neighbouring results.
// Needs     4 bytes of shared memory for each of KT k of each row, column and slice.
//
//                       w tile: KT k x LN * TILE_N4 blocks
//   x tile:        +---------------+---------------+    y of a workgroup, TILE_M4 = TILE_N4 = 2: a cell is
//   LM * TILE_M4   | 0 1 .. (LN)   | 0 1 .. (LN)   |    4 x 4 results, its number that of their invocation
//   blocks x KT k  | .. (LM)       |               |
//                  +---------------+---------------+    shared memory: a step of each slice of k
//                  | 0 1 .. (LN)   | 0 1 .. (LN)   |    registers: sums, and the next step
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require

layout(local_size_x = LX, local_size_y = LY, local_size_z = SLICES) in;
layout(constant_id = 3) const bool WHOLE_STEPS = false;  // CONV: group_channels is a multiple of KT

#if WHOLE_VECTORS
layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#endif
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float_weight.glslh"
#include "float_output.glslh"

#define INVOCATIONS (LX * LY)  // invocations of a slice
#if CONV
#define LM LX
#define LN LY
#define lane_m gl_LocalInvocationID.x
#define lane_n gl_LocalInvocationID.y
#else
#define LM LY
#define LN LX
#define lane_m gl_LocalInvocationID.y
#define lane_n gl_LocalInvocationID.x
#endif
#define BM4 (LM * TILE_M4)
#define BN4 (LN * TILE_N4)
#define W_ITEMS ((KT / 4 * BN4 + INVOCATIONS - 1) / INVOCATIONS)
shared vec4 x_tile[SLICES * KT * BM4];  // [slice][k][m4 ^ k4]: neighbours along k are in other banks
shared vec4 w_tile[SLICES * KT * BN4];  // [slice][k][n4]

#define thread (gl_LocalInvocationID.y * LX + gl_LocalInvocationID.x)
#define slice gl_LocalInvocationID.z
uint x_place(uint k, uint m4) { return (slice * KT + k) * BM4 + (m4 ^ k / 4u * (32u / KT) % 8u); }

#if CONV
#include "float_gather.glslh"
#else
#include "float_rows.glslh"
#define X_ITEMS (BM4 * KT / INVOCATIONS)
vec4 next_x[X_ITEMS];
uint x_rows[X_ITEMS];
void begin_x(uint group, uint m) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    x_rows[i] = group * p.m + min(m + (thread + i * INVOCATIONS) / (KT / 4u), p.m - 1u);
}
void load_x(uint k) {  // zeros beyond k
  uint k4 = k / 4u + thread % (KT / 4u);
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    next_x[i] = 4u * k4 < p.k ? load_row(x_rows[i], k4) : vec4(0.0);
}
void store_x() {
  uint k = thread % (KT / 4u) * 4u;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) {
    uint m = (thread + i * INVOCATIONS) / (KT / 4u);
    [[unroll]] for (uint c = 0u; c < 4u; c++) x_tile[x_place(k + c, m / 4u)][m % 4u] = next_x[i][c];
  }
}
#endif

ivec4 next_w[W_ITEMS];
vec4 zeros[W_ITEMS];
uint w_at[W_ITEMS];

void begin_w(uint group, uint n4) {
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint column = min(n4 + (thread + i * INVOCATIONS) % BN4, p.n4 - 1u);
    zeros[i] = channel_block(group * p.n4 + column, ZERO);
    w_at[i] = group * ceil_div(p.k, 4u) * p.n4 + column;
  }
}
void load_w(uint k) {  // any weights beyond k: x is zero there
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint k4 = min(k / 4u + (thread + i * INVOCATIONS) / BN4, ceil_div(p.k, 4u) - 1u);
    next_w[i] = w[w_at[i] + k4 * p.n4];
  }
}
void store_w() {
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint item = thread + i * INVOCATIONS, k = item / BN4 * 4u;
    if (item < KT / 4 * BN4) {
      [[unroll]] for (uint lane = 0u; lane < 4u; lane++)
        w_tile[(slice * KT + k + lane) * BN4 + item % BN4] = weights_of_lane(next_w[i], lane, zeros[i]);
    }
  }
}

vec4 sums[TILE_M4 * 4][TILE_N4] = {};

void multiply_column(uint k) {
  vec4 values[TILE_M4], weights[TILE_N4];
  [[unroll]] for (uint i = 0u; i < TILE_M4; i++) values[i] = x_tile[x_place(k, lane_m + i * LM)];
  [[unroll]] for (uint j = 0u; j < TILE_N4; j++)
    weights[j] = w_tile[(slice * KT + k) * BN4 + lane_n + j * LN];
  [[unroll]] for (uint i = 0u; i < TILE_M4; i++)
    [[unroll]] for (uint r = 0u; r < 4u; r++)
      [[unroll]] for (uint j = 0u; j < TILE_N4; j++) sums[4u * i + r][j] += values[i][r] * weights[j];
}

void multiply_step() {
  [[dont_unroll]] for (uint first = 0u; first < KT; first += 8u) {
    [[unroll]] for (uint i = 0u; i < 8u; i++) multiply_column(first + i);
  }
}

// Add the slices' sums to those of the first slice, in order, through the memory of the tiles.
void add_slices() {
#if SLICES > 1
  [[unroll]] for (uint i = 0u; i < TILE_M4 * 4; i++) {
    [[unroll]] for (uint j = 0u; j < TILE_N4; j++) {
      barrier();
      x_tile[slice * INVOCATIONS + thread] = sums[i][j];
      barrier();
      if (slice == 0u) {
        [[unroll]] for (uint s = 1u; s < SLICES; s++) sums[i][j] += x_tile[s * INVOCATIONS + thread];
      }
    }
  }
#endif
}

void main() {
  uint tiles_n = ceil_div(p.n4, BN4), tiles_m = ceil_div(p.m, 4u * BM4);
  uint tile = workgroup_index(), group = tile / (tiles_n * tiles_m);
  uint n4 = tile % tiles_n * BN4, m = tile / tiles_n % tiles_m * 4u * BM4;

  begin_x(group, m);
  begin_w(group, n4);
  load_x(slice * KT);
  load_w(slice * KT);
  for (uint k = 0u; k < p.k; k += SLICES * KT) {  // slices iterate equally often; beyond k, x is zero
    barrier();  // the previous step has been read
    store_x();
    store_w();
    barrier();
    load_x(k + (SLICES + slice) * KT);
    load_w(k + (SLICES + slice) * KT);
    multiply_step();
  }
  add_slices();
  if (slice == 0u) {
    [[unroll]] for (uint i = 0u; i < TILE_M4 * 4; i++) {
      uint row = m + 4u * (lane_m + i / 4u * LM) + i % 4u;
      [[unroll]] for (uint j = 0u; j < TILE_N4; j++) {
        uint column = n4 + lane_n + j * LN, c4 = group * p.n4 + column;
        if (row < p.m && column < p.n4) store_row(row, c4, output_values(sums[i][j], c4));
      }
    }
  }
}
