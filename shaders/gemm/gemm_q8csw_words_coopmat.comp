// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] on matrix units of float16 with float32 sums, as
// gemm_q8csw_straight_coopmat.comp: but weights come 16 bytes at a time, and invocations put their matrices
// together in registers.
//
// Memory    x: rows of k, whole turns of two steps of BK, of float16 in uvec4. w: of each SN outputs and 32
//           k, matrices of pairs as invocations have their words (vkq.probe.words), of each four the second
//           and third in each other's place: so lie the registers of a matrix on NVIDIA's devices. Weights
//           are SIGNED (coopmat_half_types.glslh). channels and y: float_output.glslh. In shared memory a
//           row is a run of BK halves, and 16 bytes of padding keep neighbours in other banks.
// Threads   a workgroup of WGM x WGN subgroups computes BM x BN results, SPLIT: of one part of k, whole
//           turns. Weights and x of the next step are on their way meanwhile.
// Needs     the matrix shape MM x MN x MK in the device's list, of 16 outputs x 16 k, of which an invocation
//           has elements in pairs, k after k; a required subgroup size of SUBGROUP.
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

#include "push.glslh"
#include "workgroup.glslh"
#include "float16.glslh"
#include "float_output.glslh"
#define BITS 8  // of a weight
#include "coopmat_half.glslh"

#define BLOCKS (BK / 32)  // of k, of a step, which is written for four
#define RUNS (BK / RUN)
#define X_ROW (RUNS + 1)
#define STAGE (BM * X_ROW)
shared uvec4 tile[2 * STAGE > SCRATCH ? 2 * STAGE : SCRATCH];
#define thread gl_LocalInvocationIndex
#define group 0u
uint n, first_row;  // of the workgroup
#include "half_epilogue.glslh"
uint place_of_row(uint row) { return first_row + row < p.m ? first_row + row : OUTSIDE; }
#include "coopmat_split.glslh"

#define X_ITEMS (BM * RUNS / INVOCATIONS)
#define X_APART (INVOCATIONS / RUNS)  // rows from one item of an invocation to its next
uvec4 next_x[X_ITEMS], words[2 * BLOCKS][FRAGMENTS_N][MOST_WORDS_W / 4u];  // of this step and the next
MatrixW low;
MatrixX right[2][FRAGMENTS_M];
uint x_at[X_ITEMS], w_at;
#include "half_words.glslh"
#define W_LINES (FRAGMENTS_N * MATRIX_LINES)  // of a block

// The next step's weights and x, from `first` of the words on.
void load_w(uint first) {
  [[unroll]] for (uint b = 0u; b < BLOCKS; b++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      load_words(words[first + b][i], w_at + (b * FRAGMENTS_N + i) * MATRIX_LINES);
    }
}
void load_x() {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) { next_x[i] = x[x_at[i]]; }
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) x_at[i] += RUNS;
}

void store_x(uint stage) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    tile[stage * STAGE + (thread / RUNS + i * X_APART) * X_ROW + thread % RUNS] = next_x[i];
}

// Uses words, in a branch that is never taken: so they have come before others are asked for, as an
// invocation waits for all that it has asked for at once.
void wait_for(uint first) {
  uint all = 1u;
  [[unroll]] for (uint b = 0u; b < BLOCKS; b++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) all |= words[first + b][i][0].x;
  if (all == p.m >> 31) tile[0].x = all;
}

void fetch(uint to, uint stage, uint unit) {
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    coopMatLoad(right[to][j], tile, stage * STAGE + (subgroup_m + j * MN) * X_ROW + unit * 2u, X_ROW,
        gl_CooperativeMatrixLayoutColumnMajor);
}

void multiply(uint block, uint nth, uint from) {
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++) {  // 0, 2, 1, 3
      set_word(low, q, pair_word(words[block][i][q / 4u][q % 2u * 2u + q / 2u % 2u], nth, 0u));
    }
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
      acc[i][j] = coopMatMulAdd(low, right[from][j], acc[i][j]);
  }
}

// Two steps, written out: drivers do not unroll a loop that has barriers in branches, and then keep what it
// indexes in memory. more: others follow, of which the first is asked for. The last products of a step hide
// its barrier, and the reads after it.
#define BLOCK(stage, b)                                \
  fetch(1u, stage, 2u * (b) + 1u);                     \
  multiply((stage) * BLOCKS + (b), 0u, 0u);            \
  fetch(0u, stage, 2u * (b) + 2u);                     \
  multiply((stage) * BLOCKS + (b), 1u, 1u);
#define STEP(stage, more)                              \
  if (more) {                                          \
    wait_for((stage) * BLOCKS);                        \
    subgroupBarrier();  /* no load crosses it */       \
    load_w((1u - (stage)) * BLOCKS);                   \
    w_at += BLOCKS * W_LINES;                          \
    load_x();                                          \
    subgroupBarrier();                                 \
  }                                                    \
  BLOCK(stage, 0u) BLOCK(stage, 1u) BLOCK(stage, 2u)   \
  fetch(1u, stage, 7u);                                \
  multiply((stage) * BLOCKS + 3u, 0u, 0u);             \
  if (more) {                                          \
    store_x(1u - (stage));                             \
    barrier();                                         \
    fetch(0u, 1u - (stage), 0u);                       \
  }                                                    \
  multiply((stage) * BLOCKS + 3u, 1u, 1u);

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), index = workgroup_index(), steps = p.k / BK;
  TAKE_PART;
  n = index % tiles_n * BN;
  first_row = index / tiles_n * BM;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    x_at[i] = min(first_row + thread / RUNS + i * X_APART, p.m - 1u) * (p.k / RUN) + first_step * RUNS +
        thread % RUNS;
  uint mine = min((n + subgroup_n) / SN, ceil_div(4u * p.n4, SN) - 1u);
  w_at = (mine * (p.k / 32u) + first_step * BLOCKS) * W_LINES + own_words;
  load_w(0u);
  w_at += BLOCKS * W_LINES;
  load_x();
  clear_acc();
  store_x(0u);
  barrier();
  fetch(0u, 0u, 0u);
  [[dont_unroll]] for (uint t = 2u; t < steps; t += 2u) { STEP(0u, true) STEP(1u, true) }
  STEP(0u, true)
  STEP(1u, false)
  ONCE_ALL_SUMS store_results();
}
