// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] for few rows on float16 matrix units with float32 sums:
// gemm_straight_coopmat.comp without a barrier of the workgroup in its loop. Each subgroup has its own
// part of k and its own part of shared memory for x: while some subgroups wait for memory, others multiply.
//
// Memory    x: rows of k, a multiple of 8, of float16 in uvec4; w and channels as
//           straight_pairs.glslh; y: rows of float16. In shared memory a row of x is a run of BK
//           halves, a row of sums BN floats; 16 bytes of padding keep neighbours in different banks.
// Threads   a workgroup of LOCAL_X invocations computes BM rows of BN outputs; neighbouring workgroups
//           compute the ROW_TILES tiles of rows of the same outputs. The subgroups' sums are added in the
//           same order every time.
// Needs     matrices of 16 outputs x 16 k, of at most BM and at most 16 rows; BN / 4 divides LOCAL_X.
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
#extension GL_EXT_control_flow_attributes : require

#include "lane.glslh"
#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { uvec2 y[]; };

#define ROWS_OF 2
#include "push.glslh"
#include "workgroup.glslh"
#include "float16.glslh"
#include "float_output.glslh"
#define BITS 8  // of a weight
#define BIASED (0x64006400u + (p.m >> 31))  // 1024 twice: grouped_matrices.glslh
#include "coopmat_half.glslh"

#define PAIRS 32u     // k of a matrix in memory
#define K_PADDED 64u  // multiple to which the weights' k is padded
#define SUBSTEPS (BK / PAIRS)
#define RUNS (BK / RUN)
#define X_ROW (RUNS + 1u)
const uint SUBGROUPS = LOCAL_X / SUBGROUP, STAGE = BM * X_ROW;
const uint ADDED = BM < ROUND ? BM : ROUND, ADDED_M = ADDED / MN;  // rows added at once
const uint SUMS_ROW = BN / 4u + 1u, SUMS = ADDED * SUMS_ROW;
const uint LARGER = STAGE > SUMS ? STAGE : SUMS, NEEDED = SUBGROUPS * LARGER;
shared uvec4 tile[NEEDED > 2u * BN ? NEEDED : 2u * BN];  // zero points, then x, then sums
#define mine (gl_SubgroupID * STAGE)
#define lane own_lane
#define me gl_LocalInvocationIndex

const uint X_ITEMS = (BM * RUNS + SUBGROUP - 1u) / SUBGROUP;
uvec4 next_x[DEPTH][X_ITEMS];
MatrixW pairs[DEPTH * SUBSTEPS][FRAGMENTS_N], zeros[FRAGMENTS_N], left;
MatrixX right[FRAGMENTS_M];
uint n, first_row, first_step;  // position of the workgroup; first step of the subgroup's part of k
uint w_first[FRAGMENTS_N], w_blocks;  // offset of a matrix's outputs; number of blocks of PAIRS k

// Item i of x: its row in the subgroup's part of shared memory, and its run of k in a step.
#define x_row(i) ((lane + (i) * SUBGROUP) / RUNS)
#define x_run(i) ((lane + (i) * SUBGROUP) % RUNS)

void load_w(uint i, uint slot, uint t) {
  [[unroll]] for (uint s = 0u; s < SUBSTEPS; s++) {
    uint block = min((first_step + t) * SUBSTEPS + s, w_blocks - 1u);
    coopMatLoad(pairs[slot * SUBSTEPS + s][i], w, w_first[i] + block * 2u * MM, 2,
        gl_CooperativeMatrixLayoutRowMajor);
  }
}
void load_x(uint slot, uint t) {
  uint runs = p.k / RUN;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    next_x[slot][i] = x[min(first_row + x_row(i), p.m - 1u) * runs +
        min((first_step + t) * RUNS + x_run(i), runs - 1u)];
}

// Make numbers beyond k zero afterwards: few steps have any, and a choice for each number takes longer.
void store_x(uint slot, uint t) {
  uint first = (first_step + t) * RUNS, runs = p.k / RUN;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    if (BM * RUNS % SUBGROUP == 0u || x_row(i) < BM)
      tile[mine + x_row(i) * X_ROW + x_run(i)] = next_x[slot][i];
  if (first + RUNS > runs)
    [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
      if (first + x_run(i) >= runs && x_row(i) < BM) tile[mine + x_row(i) * X_ROW + x_run(i)] = uvec4(0u);
}

// DEPTH steps from t on. more: issue the loads of the steps after them; a constant, since loads in a branch
// wait for each other. A matrix becomes halves as it is multiplied, to save registers.
#define TURN(t, more)                                                              \
  [[unroll]] for (uint d = 0u; d < DEPTH; d++) {                                   \
    store_x(d, (t) + d);                                                           \
    subgroupBarrier();                                                             \
    if (more) load_x(d, (t) + d + DEPTH);                                          \
    [[unroll]] for (uint s = 0u; s < SUBSTEPS; s++)                                \
      [[unroll]] for (uint h = 0u; h < 2u; h++) {                                  \
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)                         \
          coopMatLoad(right[j], tile, mine + j * MN * X_ROW + s * 4u + h * 2u, X_ROW, \
              gl_CooperativeMatrixLayoutColumnMajor);                              \
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {                       \
          halves_of_codes(pairs[d * SUBSTEPS + s][i], h, BIASED, zeros[i], left)   \
          if (more && s + 1u == SUBSTEPS && h == 1u) load_w(i, d, (t) + d + DEPTH); \
          [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)                       \
            acc[i][j] = coopMatMulAdd(left, right[j], acc[i][j]);                  \
        }                                                                          \
      }                                                                            \
    subgroupBarrier();                                                             \
  }

// Load the matrices of zero points, a row for each output, for one subtraction a matrix.
void load_zeros() {
  for (uint i = me; i < BN; i += LOCAL_X) {
    uint c = min(n + i, 4u * p.n4 - 1u);
    uvec4 row = uvec4(half_zero(channel_block(c / 4u, ZERO)[c % 4u]));
    tile[2u * i] = row;
    tile[2u * i + 1u] = row;
  }
  barrier();
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    coopMatLoad(zeros[i], tile, i * MM * 2u, 2, gl_CooperativeMatrixLayoutRowMajor);
  barrier();
}

// Add the sums of all subgroups, as rows of BN outputs. An invocation has the same block of four outputs in
// all rows.
void add_subgroups(uint c4, vec4 scale, vec4 bias) {
  [[unroll]] for (uint first = 0u; first < FRAGMENTS_M; first += ADDED_M) {
    barrier();
    [[unroll]] for (uint j = 0u; j < ADDED_M; j++)
      [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
        coopMatStore(acc[i][first + j], tile, gl_SubgroupID * SUMS + j * MN * SUMS_ROW + i * (MM / 4),
            SUMS_ROW, gl_CooperativeMatrixLayoutColumnMajor);
    barrier();
    for (uint e = me; e < ADDED * (BN / 4); e += LOCAL_X) {
      uint row = e / (BN / 4), place = first_row + first * MN + row;
      vec4 sums = vec4(0.0);
      [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++)
        sums += uintBitsToFloat(tile[s * SUMS + row * SUMS_ROW + e % (BN / 4)]);
      if (place < p.m && c4 < p.n4) store_row(place, c4, bounded(sums * scale + bias));
    }
  }
}

void main() {
  uint steps = ceil_div(ceil_div(p.k, BK), SUBGROUPS * DEPTH) * DEPTH, blocks_n = ceil_div(4u * p.n4, MM);
  n = workgroup_index() / ROW_TILES * BN;
  first_row = workgroup_index() % ROW_TILES * BM;
  first_step = gl_SubgroupID * steps;
  w_blocks = ceil_div(p.k, K_PADDED) * (K_PADDED / PAIRS);
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    w_first[i] = min(n / MM + i, blocks_n - 1u) * w_blocks * 2u * MM;
  [[unroll]] for (uint d = 0u; d < DEPTH; d++) {
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) load_w(i, d, d);
    load_x(d, d);
  }
  uint c4 = n / 4u + me % (BN / 4), known = min(c4, p.n4 - 1u);
  vec4 scale = channel_block(known, SCALE), bias = channel_block(known, BIAS);
  if (!SIGNED) load_zeros();
  clear_acc();
  [[dont_unroll]] for (uint t = DEPTH; t < steps; t += DEPTH) { TURN(t - DEPTH, true) }
  TURN(steps - DEPTH, false)
  add_subgroups(c4, scale, bias);
}
