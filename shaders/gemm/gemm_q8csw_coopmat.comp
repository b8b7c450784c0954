// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] on matrix units of float16 with float32 sums
// (VK_KHR_cooperative_matrix, subgroup scope), for matrices and (CONV) as an implicit GEMM on images: the
// int8 weights become float16, exactly, while a step is loaded.
//
// Memory    x: halves_q8csw.comp; w: kPackedInt8_16K, k = (kh, kw, channel of the group), channels padded to
//           whole runs of x; channels and y: float_output.glslh. In shared memory a row or an output is a run
//           of BK halves, and 16 bytes of padding keep neighbours in other banks.
// Threads   a workgroup of WGM x WGN subgroups computes BM x BN results (coopmat_pipeline.glslh).
// Needs     the matrix shape MM x MN x MK in the device's list, and a required subgroup size of SUBGROUP.
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = INVOCATIONS) in;
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float_output.glslh"
#include "coopmat_half.glslh"

#define K_PADDED 64u  // of weights: whole steps of every tile
#define RUNS (BK / RUN)
#define W_ROW (RUNS + 1)
#define STAGE ((BM + BN) * W_ROW)
shared uvec4 tile[2 * STAGE > SCRATCH ? 2 * STAGE : SCRATCH];
#define thread gl_LocalInvocationIndex

uint group, n, first_row;  // of the workgroup
#define X_ITEMS (BM * RUNS / INVOCATIONS)
uvec4 next_x[SLOTS][X_ITEMS];

#if CONV
#define WINDOW_VALUE uvec4
#include "float_windows.glslh"
#define x_row(i) (thread % BM)  // neighbours read neighbouring pixels
#define x_run(i) (thread / BM + (i) * (INVOCATIONS / BM))
void begin_x() { begin_window(first_row + thread % BM, group); }
uvec4 load_run(uint i, uint run) {
  uint tap = run / p.group_channels;
  return value_at(tap, run - tap * p.group_channels, RUN * run < p.k);
}
#else
#define x_row(i) ((thread + (i) * INVOCATIONS) / RUNS)
#define x_run(i) (thread % RUNS)
void begin_x() {}
uvec4 load_run(uint i, uint run) {
  uint row = min(first_row + x_row(i), p.m - 1u), runs = p.k / RUN;
  return mix(uvec4(0u), x[row * runs + min(run, runs - 1u)], bvec4(run < runs));
}
#endif

#define W_ACROSS min(BN, INVOCATIONS)
#define W_ITEMS (BN * BK / 16 / INVOCATIONS)
uvec4 next_w[SLOTS][W_ITEMS];
uint w_first, w_across, zero;

void begin_w() {
  w_across = ceil_div(4u * p.n4, 16u) * 16u;
  uint mine = min(n + thread % W_ACROSS, 4u * p.n4 - 1u);
  w_first = (group * ceil_div(p.k, K_PADDED) * (K_PADDED / 16u) + thread / W_ACROSS) * w_across + mine;
  zero = half_zero(channel_block(group * p.n4 + mine / 4u, ZERO)[mine % 4u]);
}

void load_step(uint slot, uint t) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) next_x[slot][i] = load_run(i, t * RUNS + x_run(i));
  uint run = min(t, ceil_div(p.k, BK) - 1u) * (BK / 16);
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++)
    next_w[slot][i] = w[w_first + (run + i * (INVOCATIONS / W_ACROSS)) * w_across];
}

void store_step(uint slot, uint stage) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    tile[stage * STAGE + (BN + x_row(i)) * W_ROW + x_run(i)] = next_x[slot][i];
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint run = 2u * (thread / W_ACROSS + i * (INVOCATIONS / W_ACROSS));
    uint at = stage * STAGE + thread % W_ACROSS * W_ROW + run;
    uvec4 first, second;
    half_weights(next_w[slot][i], zero, first, second);
    tile[at] = first;
    tile[at + 1u] = second;
  }
}

uint x_place(uint t, uint stage) { return stage * STAGE + (BN + subgroup_m) * W_ROW; }
uint w_place(uint stage) { return stage * STAGE + subgroup_n * W_ROW; }
#define X_RUN(j) ((j) * MN * W_ROW)
#define X_STRIDE W_ROW
#define LOAD_ONCE
#include "coopmat_pipeline.glslh"

// A subgroup's rows go through its own part of shared memory, for which invocation holds which element of a
// matrix is the device's secret. Neighbours take neighbouring results: channels, or pixels (CONV).
void store_results() {
  uint mine = gl_SubgroupID * ROUND * SCRATCH_ROW;
  barrier();
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j += ROUND / MN) {
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
      [[unroll]] for (uint r = 0u; r < ROUND / MN; r++)
        coopMatStore(acc[i][j + r], tile, mine + r * MN * SCRATCH_ROW + i * (MM / 4), SCRATCH_ROW,
            gl_CooperativeMatrixLayoutColumnMajor);
    subgroupBarrier();
    [[dont_unroll]] for (uint e = gl_SubgroupInvocationID; e < ROUND * (SN / 4); e += SUBGROUP) {
#if CONV
      uint row = e % ROUND, block = e / ROUND;
#else
      uint row = e / (SN / 4), block = e % (SN / 4);
#endif
      uint m = first_row + subgroup_m + j * MN + row, column = (n + subgroup_n) / 4u + block;
      vec4 sums = uintBitsToFloat(tile[mine + row * SCRATCH_ROW + block]);
      uint c4 = group * p.n4 + min(column, p.n4 - 1u);
      if (m < p.m && column < p.n4) store_row(m, c4, output_values(sums, c4));
    }
  }
}

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), tiles_m = ceil_div(p.m, BM);
  uint index = workgroup_index();
  group = index / (tiles_n * tiles_m);
  n = index % tiles_n * BN;
  first_row = index / tiles_n % tiles_m * BM;
  begin_x();
  begin_w();
  clear_acc();
  multiply_steps(ceil_div(ceil_div(p.k, BK), TURNS) * TURNS);
  store_results();
}
