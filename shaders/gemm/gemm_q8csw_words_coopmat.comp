// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] on float16 matrix units with float32 sums, like
// gemm_q8csw_straight_coopmat.comp, except that weights are loaded 16 bytes at a time, and invocations
// assemble their matrices in registers.
//
// Memory    x: rows of float16 in uvec4; k is a multiple of 2 * BK. w: for each 32 outputs and 32
//           k, matrices of pairs in the order of the invocations' words (vkq.probe.words), elements 1 and 2
//           of every group of 4 swapped: the order of a matrix's registers on NVIDIA's devices. Weights are
//           SIGNED (coopmat_half_types.glslh). channels and y: float_output.glslh. In shared memory a row is
//           a run of BK halves and 16 bytes of padding, which keep neighbours in different banks.
// Threads   a workgroup of WGM x WGN subgroups computes BM x BN results; SPLIT: for one part of k, whole
//           turns. While a step is multiplied, weights and x of the next step are loaded. LAST 1: the last
//           products of a step hide its barrier and the reads after it, with twice as many matrices of x;
//           else 0.
// Needs     the matrix shape MM x MN x MK in the device's list, of 16 outputs x 16 k, in which an invocation
//           holds elements in pairs along k; a required subgroup size of SUBGROUP.
//
//           <------ BN outputs ------>
//         ^ +------------+------------+          subgroup 1: FRAGMENTS_M x FRAGMENTS_N matrices of
//         | | subgroup 0 | subgroup 1 | ------>  MN rows x MM outputs, in registers
//    BM   | +------------+------------+          +---------+---------+---------+
//   rows  | | subgroup 2 | subgroup 3 |          | MN x MM | MN x MM | MN x MM |
//         v +------------+------------+          +---------+---------+---------+
//             WGM x WGN = 2 x 2                  | MN x MM | MN x MM | MN x MM |
//                                                +---------+---------+---------+
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

#include "sizes.glslh"
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

#define OUTPUTS 32u       // outputs whose weights are contiguous
#define BLOCKS (BK / 32)  // blocks of 32 k in a step
#define UNITS (BK / 16)   // units of 16 k in a step
#define RUNS (BK / RUN)
#define X_ROW (RUNS + 1)
#define STAGE (BM * X_ROW)
shared uvec4 tile[2 * STAGE > SCRATCH ? 2 * STAGE : SCRATCH];
#define thread gl_LocalInvocationIndex
#define group 0u
uint n, first_row;  // the workgroup's first output and first row
#include "half_epilogue.glslh"
uint place_of_row(uint row) { return first_row + row < p.m ? first_row + row : OUTSIDE; }
#include "coopmat_split.glslh"

#define X_ITEMS (BM * RUNS / INVOCATIONS)
#define X_APART (INVOCATIONS / RUNS)  // rows from one item of an invocation to the next
// Words of this step and of the next one.
uvec4 next_x[X_ITEMS], words[2][BLOCKS][FRAGMENTS_N][MOST_WORDS_W / 4u];
const uint GROUPS = SN / OUTPUTS, BESIDE = FRAGMENTS_N / GROUPS;  // groups of OUTPUTS; matrices of a group
uint x_at[X_ITEMS], w_at[GROUPS];
MatrixW low;
MatrixX right[1 + LAST][FRAGMENTS_M];
#include "half_words.glslh"
#define W_LINES (BESIDE * MATRIX_LINES)  // uvec4 of a block

// Load the next step's weights and x.
void load_step(uint stage) {
  [[unroll]] for (uint b = 0u; b < BLOCKS; b++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      load_words(words[stage][b][i], w_at[i / BESIDE] + b * W_LINES + i % BESIDE * MATRIX_LINES);
    }
  [[unroll]] for (uint g = 0u; g < GROUPS; g++) w_at[g] += BLOCKS * W_LINES;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) { next_x[i] = x[x_at[i]]; }
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) x_at[i] += RUNS;
}

void store_x(uint stage) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    tile[stage * STAGE + (thread / RUNS + i * X_APART) * X_ROW + thread % RUNS] = next_x[i];
}

// Use words in a branch that is never taken, so that they must have arrived before others are requested: an
// invocation waits for all its outstanding loads at once.
void wait_for(uint stage) {
  uint all = 1u;
  [[unroll]] for (uint b = 0u; b < BLOCKS; b++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) all |= words[stage][b][i][0].x;
  if (all == p.m >> 31) tile[0].x = all;
}

void fetch(uint stage, uint unit) {
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    coopMatLoad(right[unit % (1u + LAST)][j], tile, stage * STAGE + (subgroup_m + j * MN) * X_ROW + unit * 2u,
        X_ROW, gl_CooperativeMatrixLayoutColumnMajor);
}

void multiply(uint stage, uint unit) {
  uint from = unit % (1u + LAST);
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++) {  // 0, 2, 1, 3
      uint word = words[stage][unit / 2u][i][q / 4u][q % 2u * 2u + q / 2u % 2u];
      set_word(low, q, pair_word(word, unit % 2u, 0u));
    }
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
      acc[i][j] = coopMatMulAdd(low, right[from][j], acc[i][j]);
  }
}

// A step. more: another step follows, whose loads are issued. Steps are written out, and no loop contains a
// branch: drivers do not unroll a loop with barriers in branches, and keep the arrays that it indexes in
// memory.
#define STEP(stage, more)                                        \
  if (more) {                                                    \
    wait_for(stage);                                             \
    subgroupBarrier();  /* no load crosses it */                 \
    load_step(1u - (stage));                                     \
    subgroupBarrier();                                           \
  }                                                              \
  [[unroll]] for (uint unit = 0u; unit < UNITS - LAST; unit++) { \
    fetch(stage, unit + LAST);                                   \
    multiply(stage, unit);                                       \
  }                                                              \
  if (more) {                                                    \
    store_x(1u - (stage));                                       \
    barrier();                                                   \
    if (LAST == 1) fetch(1u - (stage), 0u);                      \
  }                                                              \
  if (LAST == 1) multiply(stage, UNITS - 1u);

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), index = workgroup_index(), steps = p.k / BK;
  TAKE_PART;
  n = index % tiles_n * BN;
  first_row = index / tiles_n * BM;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    x_at[i] = min(first_row + thread / RUNS + i * X_APART, p.m - 1u) * (p.k / RUN) + first_step * RUNS +
        thread % RUNS;
  [[unroll]] for (uint g = 0u; g < GROUPS; g++) {
    uint mine = min((n + subgroup_n) / OUTPUTS + g, ceil_div(4u * p.n4, OUTPUTS) - 1u);
    w_at[g] = (mine * (p.k / 32u) + first_step * BLOCKS) * W_LINES + own_words;
  }
  load_step(0u);
  clear_acc();
  store_x(0u);
  barrier();
  if (LAST == 1) fetch(0u, 0u);
  [[dont_unroll]] for (uint t = 2u; t < steps; t += 2u) { STEP(0u, true) STEP(1u, true) }
  STEP(0u, true)
  STEP(1u, false)
  ONCE_ALL_SUMS store_results();
}
