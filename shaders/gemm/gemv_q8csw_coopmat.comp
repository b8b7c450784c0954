// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] for few rows on matrix units of float16 with float32 sums:
// gemm_q8csw_coopmat.comp without a barrier of the workgroup in its loop. Each subgroup has a part of k and a
// piece of shared memory to itself, so that while some wait for memory others multiply.
//
// Memory    x: rows of k, a multiple of 8, of float16 in uvec4; w and channels as gemm_q8csw_coopmat.comp; y:
//           rows of float16. In shared memory a row or an output is a run of BK halves and 16 bytes of
//           padding, which keep neighbours in other banks.
// Threads   a workgroup computes BM rows of BN outputs, one for each invocation of a subgroup. The subgroups'
//           sums are added in the same order every time.
// Needs     matrices of at most BM rows, whose subgroups have BN invocations.
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
layout(set = 0, binding = 3) writeonly buffer Y { uvec2 y[]; };

#define ROWS_OF 2
#include "push.glslh"
#include "workgroup.glslh"
#include "float16.glslh"
#include "float_output.glslh"
#include "coopmat_half.glslh"

#define SUBGROUPS (INVOCATIONS / BN)
#define RUNS (BK / RUN)
#define W_ROW (RUNS + 1)
#define STAGE ((BM + BN) * W_ROW)  // of a subgroup: outputs, then rows
#define SUMS (BM * BN / 4)
shared uvec4 tile[SUBGROUPS * (STAGE > SUMS ? STAGE : SUMS)];
#define mine (gl_SubgroupID * STAGE)
#define lane gl_SubgroupInvocationID

#define W_ITEMS (BK / 16)
#define X_ITEMS (BM * RUNS / BN)
uvec4 next_w[DEPTH][W_ITEMS], next_x[DEPTH][X_ITEMS];
uint first_step, first_row, column, across, zero;  // of the subgroup's part; of the workgroup; of the lane

void load_step(uint slot, uint t) {
  uint step_ = first_step + t, runs = p.k / RUN, last = ceil_div(p.k, BK) - 1u;
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++)
    next_w[slot][i] = w[(min(step_, last) * W_ITEMS + i) * across + column];
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) {
    uint item = lane + i * BN, row = min(first_row + item / RUNS, p.m - 1u), run = step_ * RUNS + item % RUNS;
    next_x[slot][i] = mix(uvec4(0u), x[row * runs + min(run, runs - 1u)], bvec4(run < runs));
  }
}

void store_step(uint slot) {
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uvec4 first, second;
    half_weights(next_w[slot][i], zero, first, second);
    tile[mine + lane * W_ROW + 2u * i] = first;
    tile[mine + lane * W_ROW + 2u * i + 1u] = second;
  }
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) {
    uint item = lane + i * BN;
    tile[mine + (BN + item / RUNS) * W_ROW + item % RUNS] = next_x[slot][i];
  }
}

void multiply_step() {
  [[unroll]] for (uint k = 0u; k < RUNS; k += MK / RUN) {
    MatrixX right[FRAGMENTS_M];
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
      coopMatLoad(right[j], tile, mine + (BN + j * MN) * W_ROW + k, W_ROW,
          gl_CooperativeMatrixLayoutColumnMajor);
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      MatrixW left;
      coopMatLoad(left, tile, mine + i * MM * W_ROW + k, W_ROW, gl_CooperativeMatrixLayoutRowMajor);
      [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
        acc[i][j] = coopMatMulAdd(left, right[j], acc[i][j]);
    }
  }
}

// DEPTH steps from t on. more: whether those after them are asked for; a constant, as loads behind a branch
// wait for each other.
#define TURN(t, more)                                \
  [[unroll]] for (uint d = 0u; d < DEPTH; d++) {     \
    store_step(d);                                   \
    if (more) load_step(d, t + d + DEPTH);           \
    subgroupBarrier();                               \
    multiply_step();                                 \
    subgroupBarrier();                               \
  }

// The sums of all subgroups, as rows of BN outputs.
void add_subgroups(uint n) {
  barrier();
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
      coopMatStore(acc[i][j], tile, gl_SubgroupID * SUMS + j * MN * (BN / 4) + i * (MM / 4), BN / 4,
          gl_CooperativeMatrixLayoutColumnMajor);
  barrier();
  for (uint e = gl_LocalInvocationIndex; e < SUMS; e += INVOCATIONS) {
    vec4 sums = vec4(0.0);
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) sums += uintBitsToFloat(tile[s * SUMS + e]);
    uint row = first_row + e / (BN / 4), c4 = n / 4u + e % (BN / 4);
    if (row < p.m && c4 < p.n4) store_row(row, c4, output_values(sums, c4));
  }
}

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), index = workgroup_index(), n = index % tiles_n * BN;
  uint steps = ceil_div(ceil_div(p.k, BK), SUBGROUPS * DEPTH) * DEPTH;
  first_step = gl_SubgroupID * steps;
  first_row = index / tiles_n * BM;
  column = min(n + lane, 4u * p.n4 - 1u);
  across = ceil_div(4u * p.n4, 16u) * 16u;
  [[unroll]] for (uint d = 0u; d < DEPTH; d++) load_step(d, d);
  zero = half_zero(channel_block(column / 4u, ZERO)[column % 4u]);
  clear_acc();
  [[dont_unroll]] for (uint t = DEPTH; t < steps; t += DEPTH) { TURN(t - DEPTH, true) }
  TURN(0u, false)
  add_subgroups(n);
}
