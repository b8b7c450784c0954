// Self-test of matrix units for float16, or bfloat16 (BRAIN): float32 sums of products of known values. As in
// the kernels, operands are loaded from shared memory with k contiguous, and results are stored column-major.
//
// Memory    x: [case][step][row][k] and w: [case][step][output][k], 16-bit floats, 8 k in a uvec4; y: float32
//           [case][row][output].
// ALIKE     x is loaded with a stride of 0, so every row is the case's first row. Output n is also multiplied
//           by the scale 2^n, and the scales are loaded with a stride of 0, too, as in
//           coopmat_half_types.glslh and gemv_coopmat.comp.
// PAIRED    matrices are assembled in registers. First, a matrix is loaded in which every word (two elements)
//           is its own position; it shows which words an invocation holds. Then the invocation reads its
//           words from shared memory, in the pairs that the kernels assume:
//             float16 x      a word, and the word 8 k after it in the same row (gemv_words_coopmat.comp,
//                            gemv_q8csw_runs_coopmat.comp)
//             float16 w      the same pairs, if matrices have 16 k and 8 rows (gemv_row_coopmat.comp)
//             bfloat16 x     a word, and the word of the same k 8 rows below it (gemv_words_coopmat.comp)
// SMALL     w is float16 and is converted to bfloat16.
// Threads   a workgroup is one subgroup and computes one case.
// Needs     the matrix shape MM x MN x MK in the device's list, and a required subgroup size of SUBGROUP.
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#ifdef BRAIN
#extension GL_EXT_bfloat16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#endif
#if defined(SMALL) || !defined(BRAIN)
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 13) in;
layout(constant_id = 16) const bool ALIKE = false;
layout(constant_id = 17) const bool PAIRED = false;

layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) writeonly buffer Y { uvec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;  // number of cases
  uint steps;
} p;

#include "workgroup.glslh"
#include "coopmat_half_types.glslh"
const uint RUNS = MK / 8;
shared uvec4 rows[MN * RUNS], outputs[MM * RUNS], results[MN * (MM / 4)];
shared uvec4 tile[MM / 4];  // scales of the outputs, for ALIKE
#ifdef BRAIN
#define place_of(matrix, q) word_of_matrix(matrix, q)
#else
#define place_of(matrix, q) \
  (MK == 16u && MN == 8u ? word_of_matrix(matrix, first_of(q)) + 4u * further(q) : word_of_matrix(matrix, q))
#endif

void main() {
  uint index = workgroup_index(), lane = gl_LocalInvocationIndex;
  MatrixW low;
  MatrixX lower;
  MatrixAcc acc = matrix_of_zeros();
  uint w_place[MOST_WORDS_W], x_place[MOST_WORDS_X];
  if (PAIRED) {
    for (uint i = lane; i < MM * RUNS; i += SUBGROUP) outputs[i] = 4u * i + uvec4(0u, 1u, 2u, 3u);
    for (uint i = lane; i < MN * RUNS; i += SUBGROUP) rows[i] = 4u * i + uvec4(0u, 1u, 2u, 3u);
    barrier();
    coopMatLoad(low, outputs, 0, RUNS, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(lower, rows, 0, RUNS, gl_CooperativeMatrixLayoutColumnMajor);
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++)
      w_place[q] = min(place_of(low, q), MM * RUNS * 4u - 1u);
    [[unroll]] for (uint q = 0u; q < WORDS_X; q++)
      x_place[q] = min(place_of(lower, q), MN * RUNS * 4u - 1u);
  }
  [[dont_unroll]] for (uint s = 0u; s < p.steps; s++) {
    barrier();
    for (uint i = lane; i < MN * RUNS; i += SUBGROUP) rows[i] = x[(index * p.steps + s) * MN * RUNS + i];
    for (uint i = lane; i < MM * RUNS; i += SUBGROUP) outputs[i] = w[(index * p.steps + s) * MM * RUNS + i];
#ifdef SMALL
    for (uint i = lane; i < MM * RUNS; i += SUBGROUP)
      for (uint j = 0u; j < 4u; j++) outputs[i][j] = brains_of(unpackFloat2x16(outputs[i][j]));
#endif
    barrier();
    coopMatLoad(low, outputs, 0, RUNS, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(lower, rows, 0, ALIKE ? 0u : RUNS, gl_CooperativeMatrixLayoutColumnMajor);
    if (PAIRED) {
      [[unroll]] for (uint q = 0u; q < WORDS_W; q++)
        set_word(low, q, outputs[w_place[q] / 4u][w_place[q] % 4u]);
#ifdef BRAIN
      const uint EIGHT = 8u * RUNS * 4u;  // number of words in 8 rows
      if (MN == 16u)
        [[unroll]] for (uint q = 0u; q < WORDS_BOTH; q++) {
          uint at = x_place[q] % EIGHT, further = at + EIGHT;
          set_both(lower, q, rows[at / 4u][at % 4u], rows[further / 4u][further % 4u]);
        }
#else
      [[unroll]] for (uint l = 0u; l < LOADS_X; l++) {
        uint at = min(x_place[word_of_run(l)], MN * RUNS * 4u - 5u), further = at + 4u;
        set_word(lower, word_of_run(l), rows[at / 4u][at % 4u]);
        set_word(lower, further_word(l), rows[further / 4u][further % 4u]);
      }
#endif
    }
    acc = coopMatMulAdd(low, lower, acc);
  }
#ifndef BRAIN
  if (ALIKE) {
    MatrixAcc sums = acc, scales;
    if (lane < MM / 4) tile[lane] = (4u * lane + uvec4(127, 128, 129, 130)) << 23;
    barrier();
    load_scales(scales, 0u);
    acc = matrix_of_zeros();
    add_scaled(acc, scales, sums);
  }
#endif
  coopMatStore(acc, results, 0, MM / 4, gl_CooperativeMatrixLayoutColumnMajor);
  barrier();
  for (uint i = lane; i < MN * (MM / 4); i += SUBGROUP) y[index * MN * (MM / 4) + i] = results[i];
}
