// Y[M,N] = X[M,K] W[N,K]^T + bias[N] of float16 rows with weights in groups along K, on float16 matrix units
// with float32 sums. Codes are loaded directly from memory into matrices, as in
// gemm_q8csw_straight_coopmat.comp; x, scales and zero points go through shared memory.
//
// Memory    x: rows of k of float16 in uvec4; w, w_groups: common/grouped_matrices.glslh; y: rows of float16;
//           ROWS_OF: rows of whole blocks of four, in uvec2. In shared memory a row is a run of BK halves and
//           16 bytes of padding, which keep neighbours in different banks.
// Threads   a workgroup of WGN subgroups, each with all rows of some outputs, computes BM x BN results;
//           SPLIT: for one part of k. While a step is multiplied, x of the next two steps and codes of the
//           next TURNS are being loaded.
// Needs     matrices of 16 outputs and 16 k, and a required subgroup size of SUBGROUP.
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
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require

#include "sizes.glslh"
layout(constant_id = 3) const bool HALF_SCALES = false;

#include "float16.glslh"
#include "float_numbers.glslh"
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Groups { uint w_groups[]; };
#ifdef ROWS_OF
layout(set = 0, binding = 3) writeonly buffer Y { uvec2 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"
#include "coopmat_half.glslh"
#define STEPS 1
#include "grouped_matrices.glslh"
#include "grouped_items.glslh"

#define BLOCKS (BK / BLOCK)
#define RUNS (BK / RUN)
#define X_ROW (RUNS + 1)
const uint SCALES_AT = BM * X_ROW, ZEROS_AT = SCALES_AT + SCALES, STAGE = ZEROS_AT + ZERO_HALVES;
shared uvec4 tile[2 * STAGE > SCRATCH ? 2 * STAGE : SCRATCH];
#define thread gl_LocalInvocationIndex
uint n, first_row, blocks, across;  // position of the workgroup; `across`: number of all outputs
#include "coopmat_split.glslh"

// The epilogue does not scale: the sums are scaled already.
#define LATE
#define N4 ceil_div(p.n, 4u)
const uint SCALE = 0u, BIAS = 1u, group = 0u;
vec4 channel_block(uint c4, uint what) {
  vec4 block = vec4(1.0);
  if (what == BIAS) [[unroll]]
    for (uint c = 0u; c < 4u; c++) block[c] = span_bias(min(4u * c4 + c, p.n - 1u), across);
  return block;
}
void store_row(uint m, uint c4, vec4 values) {
#ifdef ROWS_OF
  y[m * (p.n / 4u) + c4] = float16_pair(values);
#else
  [[unroll]] for (uint c = 0u; c < 4u; c++)
    if (4u * c4 + c < p.n) store_number(y, m * p.n + 4u * c4 + c, values[c]);
#endif
}
#include "half_epilogue.glslh"
uint place_of_row(uint row) { return first_row + row < p.m ? first_row + row : OUTSIDE; }

#define X_ITEMS (BM * RUNS / INVOCATIONS)
#define X_APART (INVOCATIONS / RUNS)  // rows from one item of an invocation to the next
const uint SPAN_ITEMS = (ITEMS + INVOCATIONS - 1u) / INVOCATIONS;
uvec4 next_x[X_ITEMS];
uvec4 next_spans[SPAN_ITEMS];
uint x_first[X_ITEMS], w_first[FRAGMENTS_N];  // offsets of rows of x; offsets of matrices of weights
MatrixW codes[TURNS * BLOCKS][FRAGMENTS_N], halves[FRAGMENTS_N], zeros[FRAGMENTS_N];
MatrixX right[2][FRAGMENTS_M];
MatrixAcc sums[FRAGMENTS_N][FRAGMENTS_M], scales;

void begin() {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    x_first[i] = min(first_row + thread / RUNS + i * X_APART, p.m - 1u) * (p.k / RUN);
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
    w_first[i] = min((n + subgroup_n) / MM + i, across / MM - 1u) * blocks;
    fill_halves(zeros[i], float(1024u + ZERO));
  }
}

// Load x, scales and zero points of step t of the part.
void load_x(uint t) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    next_x[i] = x[x_first[i] + min((first_step + t) * RUNS + thread % RUNS, p.k / RUN - 1u)];
  [[unroll]] for (uint i = 0u; i < SPAN_ITEMS; i++)
    next_spans[i] = words_of_item((first_step + t) * BK, n, across, thread + i * INVOCATIONS);
}

void store_x(uint stage, uint t) {
  bool inside = (first_step + t) * RUNS + thread % RUNS < p.k / RUN;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    tile[stage * STAGE + (thread / RUNS + i * X_APART) * X_ROW + thread % RUNS] =
        inside ? next_x[i] : uvec4(0u);
  [[unroll]] for (uint i = 0u; i < SPAN_ITEMS; i++) {
    uint item = thread + i * INVOCATIONS, first = stage * STAGE;
    if (item < ITEMS) { store_item(first + SCALES_AT, first + ZEROS_AT, item, next_spans[i]) }
  }
}

// Load block `ahead` of step t.
void load_w(uint slot, uint t, uint ahead) {
  uint block = min((first_step + t) * BLOCKS + ahead, blocks - 1u);
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    coopMatLoad(codes[slot][i], w, (w_first[i] + block) * 32u, 2, gl_CooperativeMatrixLayoutRowMajor);
}

void fetch(uint buffer_, uint stage, uint k16) {
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    coopMatLoad(right[buffer_][j], tile, stage * STAGE + (subgroup_m + j * MN) * X_ROW + k16 * 2u, X_ROW,
        gl_CooperativeMatrixLayoutColumnMajor);
}

// Multiply 16 k, number `nth` of the block in `slot`, at `k16` of the step.
void multiply(uint slot, uint nth, uint stage, uint k16) {
  uint now = k16 % 2u, output_ = 16u * k16 / SPAN * BN + subgroup_n;
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
    if (POINTS == 1u && begins(16u * k16)) {
      load_points(zeros[i], (stage * STAGE + ZEROS_AT) * 8u + output_ + i * MM);
    }
    halves_of_codes(codes[slot][i], nth, BIASED, zeros[i], halves[i])
  }
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++) {
      if (begins(16u * k16)) { sums[i][j] = matrix_of_zeros(); }
      sums[i][j] = coopMatMulAdd(halves[i], right[now][j], sums[i][j]);
    }
  if (ends(16u * k16)) {
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      load_scales(scales, (stage * STAGE + SCALES_AT) * 4u + output_ + i * MM);
      [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++) { add_scaled(acc[i][j], scales, sums[i][j]); }
    }
  }
}

// Compute step t, the `turn`-th of its turn: a constant, because registers cannot be indexed in a loop.
void multiply_step(uint turn, uint t) {
  uint stage = t % 2u;
  fetch(0u, stage, 0u);
  [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
    uint slot = turn * BLOCKS + b;
    [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
      uint k16 = b * CHUNKS + c;
      if (k16 + 1u < BK / 16) fetch((k16 + 1u) % 2u, stage, k16 + 1u);
      multiply(slot, c, stage, k16);
    }
    load_w(slot, t + TURNS, b);
  }
  store_x(1u - stage, t + 1u);
  load_x(t + 2u);
  barrier();
}

void main() {
  uint tiles_n = ceil_div(p.n, BN), index = workgroup_index(), steps = ceil_div(p.k, BK);
  TAKE_PART;
  n = index % tiles_n * BN;
  first_row = index / tiles_n * BM;
  blocks = ceil_div(p.k, BLOCK);
  across = ceil_div(p.n, MM) * MM;
  begin();
  [[unroll]] for (uint s = 0u; s < TURNS * BLOCKS; s++) load_w(s, 0u, s);
  load_x(0u);
  store_x(0u, 0u);
  load_x(1u);
  clear_acc();
  barrier();
  // Steps beyond the end of k multiply x of zero.
  [[dont_unroll]] for (uint t = 0u; t < steps; t += TURNS)
    [[unroll]] for (uint turn = 0u; turn < TURNS; turn++) multiply_step(turn, t + turn);
  ONCE_ALL_SUMS store_results();
}
