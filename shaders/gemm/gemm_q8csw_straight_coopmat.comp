// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] on float16 matrix units with float32 sums, like
// gemm_coopmat.comp, except that weights are loaded directly from memory into matrices, two in each
// element, and become float16 there. A subgroup computes all rows of a tile, so no other subgroup needs its
// weights. Only x goes through shared memory, whose bandwidth limits gemm_coopmat.comp.
//
// Memory    x: runs_q8csw.comp; X_ROWS: half_rows.glslh. w: weights + 128 in kPackedInt8_32K, with k and k +
//           16 of each 32 k side by side, so that 32 bytes are a row of a matrix with two k in each element
//           (SIGNED: coopmat_half_types.glslh); or (FLOAT_WEIGHTS) two matrices of float16. channels and y:
//           float_output.glslh. In shared memory a row is a run of BK halves and 16 bytes of padding, which
//           keep neighbours in different banks.
// Threads   a workgroup of WGN subgroups computes BM x BN results; SPLIT: for one part of k. x is loaded one
//           step ahead, weights TURNS steps ahead (LATE: W_AHEAD x 32 k).
// Needs     the matrix shape MM x MN x MK in the device's list, and a required subgroup size of SUBGROUP.
//
//           <---------- BN outputs --------->
//         ^ +-------+-------+-------+-------+      a subgroup: FRAGMENTS_M x FRAGMENTS_N matrices
//    BM   | | sub-  | sub-  | sub-  | sub-  |      +---------+---------+  weights: memory to registers,
//   rows  | | group | group | group | group | -->  | MN rows | MN x MM |  as no other subgroup needs them;
//         | |   0   |   1   |   2   |   3   |      |  x MM   |         |  x: shared memory, for all
//         v +-------+-------+-------+-------+      +---------+---------+
//              WGN, each with all rows             | MN x MM | MN x MM |
//                                                  +---------+---------+
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

#include "sizes.glslh"
layout(constant_id = 18) const bool FLOAT_WEIGHTS = false;
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
#if !defined(ROWS_OF)
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#elif ROWS_OF == 2
layout(set = 0, binding = 3) writeonly buffer Y { uvec2 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { vec4 y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#include "float16.glslh"
#include "float_output.glslh"
#define BITS 8  // of a weight
#define BIASED (0x64006400u + (p.m >> 31))  // 1024 twice: grouped_matrices.glslh
#include "coopmat_half.glslh"

#define PAIRS 32u     // k of a matrix in memory
#define K_PADDED 64u  // multiple to which the weights' k is padded
#define RUNS (BK / RUN)
#define W_ROW (RUNS + 1)  // like a row of x
#define STAGE (BM * W_ROW)
#define SUBSTEPS (BK / 32)
const uint NEEDED = 2 * STAGE > 2 * BN ? 2 * STAGE : 2 * BN;  // first for zero points, then for x
shared uvec4 tile[NEEDED > SCRATCH ? NEEDED : SCRATCH];
#define thread gl_LocalInvocationIndex
uint group, n, first_row;  // the workgroup's group, first output and first row
#include "half_epilogue.glslh"
uint place_of_row(uint row) { return first_row + row < p.m ? first_row + row : OUTSIDE; }
#include "coopmat_split.glslh"

#define X_ITEMS (BM * RUNS / INVOCATIONS)
#ifdef X_ROWS
#include "half_rows.glslh"
#else
#include "half_runs.glslh"
#endif

const uint W_EACH = FLOAT_WEIGHTS ? 2 : 1;  // matrices in memory for 32 k
#ifdef AHEAD
const uint W_AHEAD = AHEAD / W_EACH;
#else
const uint W_AHEAD = TURNS * SUBSTEPS;
#endif
MatrixW pairs[W_AHEAD * W_EACH][FRAGMENTS_N], zeros[FRAGMENTS_N], low[FRAGMENTS_N], high[FRAGMENTS_N];
MatrixX right[2][FRAGMENTS_M];
uint w_first[FRAGMENTS_N], w_blocks;  // offsets of matrices of weights; blocks of PAIRS k

void begin_w() {
  uint blocks_n = ceil_div(4u * p.n4, MM);
  w_blocks = ceil_div(p.k, K_PADDED) * (K_PADDED / PAIRS);
  uint lines = w_blocks * W_EACH * 2u * MM;
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    w_first[i] = (group * blocks_n + min((n + subgroup_n) / MM + i, blocks_n - 1u)) * lines;
}

#include "half_zeros.glslh"

// Load the weights of outputs i, for substep `ahead` from the first one of step t on, into `slot`; load_w: of
// all outputs.
void load_w_of(uint i, uint slot, uint t, uint ahead) {
  uint block = min((first_step + t) * SUBSTEPS + ahead, w_blocks - 1u);
  [[unroll]] for (uint e = 0u; e < W_EACH; e++)
    coopMatLoad(pairs[slot * W_EACH + e][i], w, w_first[i] + (block * W_EACH + e) * 2u * MM, 2,
        gl_CooperativeMatrixLayoutRowMajor);
}
void load_w(uint slot, uint t, uint ahead) {
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) load_w_of(i, slot, t, ahead);
}

void store_x(uint stage) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) tile[stage * STAGE + x_tile_place(0u, i)] = x_stored(0u, i);
}

void fetch(uint buffer_, uint stage, uint k16) {
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    coopMatLoad(right[buffer_][j], tile, stage * STAGE + (subgroup_m + j * MN) * W_ROW + k16 * 2u, W_ROW,
        gl_CooperativeMatrixLayoutColumnMajor);
}

#define in_memory(slot, i, nth) pairs[(slot) * W_EACH + (nth) % W_EACH][i]
#define multiply_row(left, buffer_)                       \
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)      \
    acc[i][j] = coopMatMulAdd(left, right[buffer_][j], acc[i][j]);
#define multiply(left, buffer_) \
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) { multiply_row(left[i], buffer_) }

#ifdef LATE
// Compute step t with fewer registers than the other multiply_step: a matrix is converted to halves just
// before it is multiplied, and then the next weights are requested. The last products of a step hide its
// barrier and the reads after it.
void multiply_step(uint turn, uint t) {
  uint stage = t % 2u;
  [[unroll]] for (uint s = 0u; s < SUBSTEPS; s++) {
    uint slot = (turn * SUBSTEPS + s) % W_AHEAD;
    fetch(1u, stage, 2u * s + 1u);
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      if (FLOAT_WEIGHTS) low[i] = in_memory(slot, i, 0u);
      else { halves_of_codes(pairs[slot][i], 0u, BIASED, zeros[i], low[i]) }
      multiply_row(low[i], 0u)
    }
    if (s + 1u == SUBSTEPS) {
      store_x(1u - stage);
      load_x(0u, first_step + t + 2u);
      barrier();
    }
    fetch(0u, s + 1u < SUBSTEPS ? stage : 1u - stage, (2u * s + 2u) % (2u * SUBSTEPS));
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      if (FLOAT_WEIGHTS) low[i] = in_memory(slot, i, 1u);
      else { halves_of_codes(pairs[slot][i], 1u, BIASED, zeros[i], low[i]) }
      load_w_of(i, slot, t, s + W_AHEAD);
      multiply_row(low[i], 1u)
    }
  }
}
#else
// Compute step t, the `turn`-th of its turn: a constant, because registers cannot be indexed in a loop.
void multiply_step(uint turn, uint t) {
  uint stage = t % 2u;
  fetch(0u, stage, 0u);
  [[unroll]] for (uint s = 0u; s < SUBSTEPS; s++) {
    uint slot = turn * SUBSTEPS + s;
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      if (FLOAT_WEIGHTS) {
        low[i] = in_memory(slot, i, 0u);
        high[i] = in_memory(slot, i, 1u);
      } else {
        halves_of_pairs(pairs[slot][i], zeros[i], low[i], high[i]);
      }
    }
    load_w(slot, t + TURNS, s);
    fetch(1u, stage, 2u * s + 1u);
    multiply(low, 0u)
    if (s + 1u < SUBSTEPS) fetch(0u, stage, 2u * s + 2u);
    multiply(high, 1u)
  }
  store_x(1u - stage);
  load_x(0u, first_step + t + 2u);
  barrier();
}
#endif

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), tiles_m = ceil_div(p.m, BM);
  uint index = workgroup_index(), steps = ceil_div(p.k, BK);
  TAKE_PART;
  group = index / (tiles_n * tiles_m);
  n = index % tiles_n * BN;
  first_row = index / tiles_n % tiles_m * BM;
  begin_x();
  begin_w();
  [[unroll]] for (uint s = 0u; s < W_AHEAD; s++) load_w(s, 0u, s);
  load_x(0u, first_step);
  if (!SIGNED) load_zeros();
  store_x(0u);
  load_x(0u, first_step + 1u);
  clear_acc();
  barrier();
#ifdef LATE
  fetch(0u, 0u, 0u);
#endif
  // Steps beyond the end of k multiply x of zero.
  [[dont_unroll]] for (uint t = 0u; t < steps; t += TURNS)
    [[unroll]] for (uint turn = 0u; turn < TURNS; turn++) multiply_step(turn, t + turn);
  ONCE_ALL_SUMS store_results();
}
