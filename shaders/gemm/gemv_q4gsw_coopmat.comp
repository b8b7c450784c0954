// Y[M,N] = X[M,K] W[N,K]^T + bias[N] for few rows of float16 and weights in groups along K, on float16 matrix
// units with float32 sums. Each subgroup has its own part of k and its own part of shared memory: while some
// subgroups wait for memory, others multiply, and the loop contains no barrier of the workgroup.
//
// Memory    x: rows of k of float16 in uvec4; w, w_groups: common/grouped_matrices.glslh; y: rows of float16.
//           In shared memory a row or an output is a run of k and 16 bytes of padding, which keep neighbours
//           in different banks (a row of sums is a run of outputs; SUM_ROW says whether it is padded). Codes
//           are stored unchanged.
// Threads   a workgroup computes ROWS rows (in matrices of BM) of BN outputs. The subgroups' sums are added
//           in the same order every time.
// Needs     matrices of 16 outputs and 16 k, of at most BM rows, and subgroups of LANES.
//
//     k -->     | subgroup 0 | subgroup 1 | subgroup 2 | ...   w, and x beneath it: a subgroup has matrices
//   BN outputs  |            |            |            |       of MN rows x MM outputs, FRAGMENTS_M x
//               +------------+------------+------------+       FRAGMENTS_N of them, with the sums of its k
//   BM rows     |            |            |            |
//                 sums: shared memory, added from subgroup 0 on --> y, BM rows x BN outputs
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require

#include "lane.glslh"
#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint INVOCATIONS = 256;
layout(constant_id = 3) const bool HALF_SCALES = false;

#include "float16.glslh"
#include "float_numbers.glslh"
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Groups { uint w_groups[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"
#include "coopmat_half_types.glslh"

#define LANES 32
const uint SUBGROUPS = INVOCATIONS / LANES;
#define BK (256 / BITS)  // k of a step, which is a block of codes
#define DEPTH (BITS / 2 * TIMES)  // steps of a turn
#define STEPS DEPTH
#include "grouped_matrices.glslh"

#define FRAGMENTS_N (BN / 16)
const uint FRAGMENTS_M = BM / MN;
#define W_ROW 3
#define W_TILE (BN * W_ROW)
#define X_STEPS (ROWS == 1 ? DEPTH : 1)  // steps whose x is in shared memory at once
#define RUNS (BK * X_STEPS / 8)
#define X_ROW (RUNS + 1)
const uint SCALES_AT = W_TILE + ROWS * X_ROW, ZEROS_AT = SCALES_AT + SCALES, STAGE = ZEROS_AT + ZEROS;
#define SUM_ROW (BN / 4 + (ROWS == 8 ? 0 : 1))  // 8 rows are not padded: padding slows some products
const uint SUMS = BM * SUM_ROW;
shared uvec4 tile[SUBGROUPS * (STAGE > SUMS ? STAGE : SUMS)];
#define mine (gl_SubgroupID * STAGE)
#define lane own_lane

#define X_ITEMS ((ROWS * RUNS + LANES - 1) / LANES)
const uint SPAN_ITEMS = SPANS * BN / LANES;
uvec4 next_w[DEPTH][FRAGMENTS_N], next_x[DEPTH][X_ITEMS];
uvec2 next_spans[DEPTH][SPAN_ITEMS];
MatrixW codes, halves, zeros[FRAGMENTS_N];
MatrixX right[CHUNKS][FRAGMENTS_M];
MatrixAcc acc[FRAGMENTS_N][FRAGMENTS_M], sums[FRAGMENTS_N][FRAGMENTS_M], scales;
// The first step of the subgroup's part; the workgroup's first row and output; blocks along k; all outputs.
uint first_step, first_row, n, blocks, across;

// Load step t of the subgroup, the `nth` of its turn.
void load_step(uint nth, uint t) {
  uint step_ = first_step + t, runs = p.k / 8u;
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
    uint matrix = min(n / 16u + i, across / 16u - 1u) * blocks + min(step_, blocks - 1u);
    next_w[nth][i] = w[matrix * 32u + lane];
  }
  if (nth % X_STEPS == 0u) {
    [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) {
      uint item = lane + i * LANES, row = min(first_row + min(item / RUNS, ROWS - 1u), p.m - 1u);
      next_x[nth][i] = x[row * runs + min(step_ * (BK / 8) + item % RUNS, runs - 1u)];
    }
  }
  if (begins(nth * BK)) {
    [[unroll]] for (uint i = 0u; i < SPAN_ITEMS; i++)
      next_spans[nth][i] = span_words(step_ * BK, n, across, lane + i * LANES);
  }
}

void store_step(uint nth, uint t) {
  uint run = (first_step + t) * (BK / 8);
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    tile[mine + i * 16u * W_ROW + lane / 2u * W_ROW + lane % 2u] = next_w[nth][i];
  if (nth % X_STEPS == 0u) {
    [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) {
      uint item = lane + i * LANES;
      uvec4 found = run + item % RUNS < p.k / 8u ? next_x[nth][i] : uvec4(0u);
      if (item < ROWS * RUNS) tile[mine + W_TILE + item / RUNS * X_ROW + item % RUNS] = found;
    }
  }
  if (begins(nth * BK)) {
    [[unroll]] for (uint i = 0u; i < SPAN_ITEMS; i++)
      store_span(mine + SCALES_AT, mine + ZEROS_AT, lane + i * LANES, next_spans[nth][i])
  }
}

// Multiply a step. A single row is loaded as every row of its matrices.
void multiply_step(uint nth) {
  [[unroll]] for (uint c = 0u; c < CHUNKS; c++)
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
      coopMatLoad(right[c][j], tile, mine + W_TILE + j * MN * X_ROW + nth % X_STEPS * (BK / 8) + c * 2u,
          ROWS == 1 ? 0u : X_ROW, gl_CooperativeMatrixLayoutColumnMajor);
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
    coopMatLoad(codes, tile, mine + i * 16u * W_ROW, W_ROW, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
      uint k = nth * BK + c * 16u, output_ = c * 16u / SPAN * BN + i * 16u;
      if (POINTS == 1u && begins(k)) {
        coopMatLoad(zeros[i], tile, mine + ZEROS_AT + 2u * output_, 2, gl_CooperativeMatrixLayoutRowMajor);
      }
      halves_of_codes(codes, c, BIASED, zeros[i], halves)
      [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++) {
        if (begins(k)) { sums[i][j] = matrix_of_zeros(); }
        sums[i][j] = coopMatMulAdd(halves, right[c][j], sums[i][j]);
      }
      if (ends(k)) {
        load_scales(scales, (mine + SCALES_AT) * 4u + output_);
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++) { add_scaled(acc[i][j], scales, sums[i][j]); }
      }
    }
  }
}

// DEPTH steps from t on. more: also issue the loads of the steps after them; it must be a constant, because
// loads in a branch wait for each other.
#define TURN(t, more)                                \
  [[unroll]] for (uint d = 0u; d < DEPTH; d++) {     \
    store_step(d, t + d);                            \
    if (more) load_step(d, t + d + DEPTH);           \
    subgroupBarrier();                               \
    multiply_step(d);                                \
    subgroupBarrier();                               \
  }

// Add the sums of all subgroups, and store the results.
void add_subgroups(uint column, float bias) {
  barrier();
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
      coopMatStore(acc[i][j], tile, gl_SubgroupID * SUMS + j * MN * SUM_ROW + i * 4u, SUM_ROW,
          gl_CooperativeMatrixLayoutColumnMajor);
  barrier();
  [[unroll]] for (uint e = gl_LocalInvocationIndex; e < ROWS * BN; e += INVOCATIONS) {
    uint row = first_row + e / BN, at = e / BN * SUM_ROW + e % BN / 4u;
    float sum = 0.0;
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) sum += uintBitsToFloat(tile[s * SUMS + at][e % 4u]);
    if (row < p.m && column < p.n) store_number(y, row * p.n + column, bounded(sum + bias));
  }
}

void main() {
  uint tiles_n = ceil_div(p.n, BN), index = workgroup_index();
  n = index % tiles_n * BN;
  first_row = index / tiles_n * ROWS;
  blocks = ceil_div(p.k, BK);
  across = ceil_div(p.n, 16u) * 16u;
  uint steps = ceil_div(blocks, SUBGROUPS * DEPTH) * DEPTH, column = n + gl_LocalInvocationIndex % BN;
  first_step = gl_SubgroupID * steps;
  [[unroll]] for (uint d = 0u; d < DEPTH; d++) load_step(d, d);
  float bias = span_bias(min(column, p.n - 1u), across);
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
    fill_halves(zeros[i], float(1024u + ZERO));
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++) { acc[i][j] = matrix_of_zeros(); }
  }
  [[dont_unroll]] for (uint t = DEPTH; t < steps; t += DEPTH) { TURN(t - DEPTH, true) }
  TURN(steps - DEPTH, false)
  add_subgroups(column, bias);
}
