// Y[M,N] = X[M,K] W[N,K]^T in int8 with exact int32 accumulation on matrix units (VK_KHR_cooperative_matrix, subgroup scope).
// Weight zero points are 0: a layer that has some takes a dot path.
//
// Memory    x: kPackedInt8_4H4W blocks [group][m4][k4] (4 rows x 4 k); w: kPackedInt8_16K, outputs padded to 16, k to 16;
//           y and channels: gemm_output.glslh. Both tiles go through shared memory as rows of BK bytes, 16 bytes of padding apart
//           from each other's banks; a block of x becomes four words of four rows, so the transposition costs nothing.
// Threads   a workgroup of WGM x WGN subgroups computes BM x BN results; each subgroup (BM / WGM) x (BN / WGN) of them, as
//           matrices of MM x MN. The next K tile is loaded into registers while the present one is multiplied.
// Needs     the matrix shape MM x MN x MK in the device's list, and a required subgroup size of SUBGROUP.
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require

#define INVOCATIONS (WGM * WGN * SUBGROUP)
layout(local_size_x = INVOCATIONS) in;

layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) writeonly buffer Y { ivec4 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint m4, n4, k4;        // blocks of one group's product in this dispatch
  uint groups;
  uint first_m4;          // of the whole result: rows may come in chunks
  uint y_c4;              // channel blocks of the whole result
  int y_zero_point, y_min, y_max;
  uint lines, oh, ow, ow_padded, channels;  // float32 result: images * oh, sizes, all channels
  float y_low, y_high;
} p;

#include "workgroup.glslh"
#include "gemm_output.glslh"
#include "coopmat_matrices.glslh"

// Shared memory in uvec4: STAGES times (BM rows of x, BN rows of w), then reused by the epilogue.
#define ROW ((BK + 16) / 16)
#define STAGE ((BM + BN) * ROW)
shared uvec4 tile[max(STAGES * STAGE, SCRATCH)];
uint tile_m4;  // the workgroup's first block of rows

#include "coopmat_epilogue.glslh"

#define X_ITEMS (BM * BK / 16 / INVOCATIONS)
#define W_ITEMS (BN * BK / 16 / INVOCATIONS)
#define K4 (BK / 4)
ivec4 next_x[X_ITEMS];
uvec4 next_w[W_ITEMS];
uint x_row[X_ITEMS];  // where this invocation's rows of x begin
uint w_row[W_ITEMS];

void begin_loads(uint group, uint m4, uint n) {
  uint n_padded = ceil_div(p.n4, 4u) * 16u, k16 = ceil_div(p.k4, 4u), t = gl_LocalInvocationIndex;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) x_row[i] = (group * p.m4 + min(m4 + (t + i * INVOCATIONS) / K4, p.m4 - 1u)) * p.k4;
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) w_row[i] = group * k16 * n_padded + min(n + (t + i * INVOCATIONS) % BN, n_padded - 1u);
}

// The K tile that begins at block k (of 4). Beyond the end of K the weights are zero, so what stands in x does not matter.
void load_tile(uint k) {
  uint n_padded = ceil_div(p.n4, 4u) * 16u, last = ceil_div(p.k4, 4u) - 1u, t = gl_LocalInvocationIndex;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) next_x[i] = x[x_row[i] + min(k + (t + i * INVOCATIONS) % K4, p.k4 - 1u)];
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint k16 = k / 4u + (t + i * INVOCATIONS) / BN;
    uvec4 run = w[w_row[i] + min(k16, last) * n_padded];
    next_w[i] = k16 <= last ? run : uvec4(0u);
  }
}

void store_tile(uint base) {
  uint t = gl_LocalInvocationIndex;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) {
    uint item = t + i * INVOCATIONS, k4 = item % K4, at = base + item / K4 * 4u * ROW + k4 / 4u;
    [[unroll]] for (uint r = 0u; r < 4u; r++) tile[at + r * ROW][k4 % 4u] = uint(next_x[i][r]);
  }
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint item = t + i * INVOCATIONS;
    tile[base + (BM + item % BN) * ROW + item / BN] = next_w[i];
  }
}

void multiply_tile(uint base) {
  uint x_at = base + gl_SubgroupID / WGN * SM * ROW, w_at = base + (BM + gl_SubgroupID % WGN * SN) * ROW;
  [[unroll]] for (uint k = 0u; k < BK / 16; k += MK / 16) {
    MatrixX mx[FRAGMENTS_M];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; i++) coopMatLoad(mx[i], tile, x_at + i * MM * ROW + k, ROW, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; j++) {
      MatrixW mw;
      coopMatLoad(mw, tile, w_at + j * MN * ROW + k, ROW, gl_CooperativeMatrixLayoutColumnMajor);
      [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; i++) acc[i][j] = coopMatMulAdd(mx[i], mw, acc[i][j]);
    }
  }
}

uint block_of_rows(uint fragment, uint row4) {
  uint m4 = tile_m4 + fragment * (MM / 4) + row4;
  return m4 < p.m4 ? p.first_m4 + m4 : OUTSIDE;
}

void main() {
  uint tiles_n = ceil_div(p.n4 * 4u, BN), tiles_m = ceil_div(p.m4 * 4u, BM);
  uint index = workgroup_index(), group = index / (tiles_n * tiles_m);
  uint n = index % tiles_n * BN, m4 = index / tiles_n % tiles_m * (BM / 4);

  tile_m4 = m4;
  clear_acc();
  begin_loads(group, m4, n);
  if (p.k4 > 0u) load_tile(0u);
#if STAGES == 1
  [[dont_unroll]] for (uint k = 0u; k < p.k4; k += K4) {
    barrier();
    store_tile(0u);
    barrier();
    if (k + K4 < p.k4) load_tile(k + K4);
    multiply_tile(0u);
  }
#else
  // One barrier a tile: the tile after the present one goes into the other stage while this one is multiplied, and the one after
  // that is on its way into registers.
  if (p.k4 > 0u) store_tile(0u);
  if (K4 < p.k4) load_tile(K4);
  [[dont_unroll]] for (uint k = 0u; k < p.k4; k += 2u * K4) {
    barrier();
    if (k + K4 < p.k4) store_tile(STAGE);
    if (k + 2u * K4 < p.k4) load_tile(k + 2u * K4);
    multiply_tile(0u);
    if (k + K4 < p.k4) {
      barrier();
      if (k + 2u * K4 < p.k4) store_tile(0u);
      if (k + 3u * K4 < p.k4) load_tile(k + 3u * K4);
      multiply_tile(STAGE);
    }
  }
#endif

  store_results(group, n);
}
