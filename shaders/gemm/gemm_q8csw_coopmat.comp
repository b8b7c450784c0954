// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] on float16 matrix units with float32 sums
// (VK_KHR_cooperative_matrix, subgroup scope), for matrices and (CONV) as an implicit GEMM on images. int8
// weights become float16, exactly, while a step is loaded; FLOAT_WEIGHTS: weights are float16. BRAIN:
// bfloat16 matrix units, with x split into three parts.
//
// Memory    x: runs_q8csw.comp; X_ROWS: half_rows.glslh; PLANES: NCHW images (half_planes.glslh). w:
//           kPackedInt8_16K, k = (kh, kw, channel of the group), channels padded to whole runs of x, elements
//           1 and 2 of every group of 4 swapped; or floats in runs of 8 k with neighbouring outputs
//           contiguous. channels and y: float_output.glslh. In shared memory a row or an output is a run of
//           BK halves and 16 bytes of padding, which keep neighbours in different banks.
// Threads   a workgroup of WGM x WGN subgroups computes BM x BN results (coopmat_pipeline.glslh); SPLIT: for
//           one part of k.
// Needs     the matrix shape MM x MN x MK in the device's list, and a required subgroup size of SUBGROUP.
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
#ifdef BRAIN
#extension GL_EXT_bfloat16 : require
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#extension GL_EXT_control_flow_attributes : require
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

#include "sizes.glslh"
#if defined(PLANES) && FLOAT16_IMAGES
#define Pixels uvec2
#else
#define Pixels uvec4
#endif
layout(set = 0, binding = 0) readonly buffer X { Pixels x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
#if !defined(ROWS_OF)
#include "float_numbers.glslh"
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };
#elif ROWS_OF == 2
layout(set = 0, binding = 3) writeonly buffer Y { uvec2 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { vec4 y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#include "float16.glslh"
#include "float_output.glslh"
#include "coopmat_half.glslh"

#define K_PADDED 64u  // k of the weights is padded to a multiple: whole steps of every tile
#define RUNS (BK / RUN)
#define W_ROW (RUNS + 1)
#ifdef PLANES
#define X_ROW (BM / RUN + 1)  // uvec4 of a k
#define X_TILE (BK * X_ROW)
#else
#define X_ROW W_ROW
#define X_TILE (BM * X_ROW)
#endif
#define STAGE (X_PARTS * X_TILE + BN * W_ROW)
shared uvec4 tile[2 * STAGE > SCRATCH ? 2 * STAGE : SCRATCH];
#define thread gl_LocalInvocationIndex
uint group, n, first_row;  // the workgroup's group, first output and first row
#include "half_epilogue.glslh"
uint place_of_row(uint row) { return first_row + row < p.m ? first_row + row : OUTSIDE; }
#include "coopmat_split.glslh"

#ifdef PLANES
#include "half_planes.glslh"
#else
#define X_ITEMS (BM * RUNS / INVOCATIONS)
#ifdef X_ROWS
#include "half_rows.glslh"
#else
#include "half_runs.glslh"
#endif

void store_x(uint slot, uint at) {
  [[unroll]] for (uint q = 0u; q < X_PARTS; q++)
    [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
      tile[at + x_tile_place(q, i)] = x_stored(slot, q * X_ITEMS + i);
}
#endif

#include "half_staged.glslh"
void begin_w() {
  begin_outputs();
  begin_weights(group * ceil_div(p.k, K_PADDED) * (K_PADDED / 16u));
}

void load_step(uint slot, uint t) {
  load_x(slot, first_step + t);
  load_weights(slot, min(first_step + t, ceil_div(p.k, BK) - 1u) * (BK / 16));
}

void store_step(uint slot, uint stage) {
  store_x(slot, stage * STAGE + BN * W_ROW);
  store_weights(slot, stage * STAGE);
}

uint w_place(uint stage) { return stage * STAGE + subgroup_n * W_ROW; }
#ifdef PLANES
uint x_place(uint t, uint stage) { return stage * STAGE + BN * W_ROW + subgroup_m / RUN; }
#define X_RUN(j) ((j) * MN / RUN)
#define X_STEP (MK * X_ROW)
#define load_x_matrix load_matrix_of_lines
#else
uint x_place(uint t, uint stage) { return stage * STAGE + BN * W_ROW + subgroup_m * X_ROW; }
#define X_RUN(j) ((j) * MN * X_ROW)
#endif
#define X_STRIDE X_ROW
#define LOAD_ONCE
#include "coopmat_pipeline.glslh"

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), tiles_m = ceil_div(p.m, BM);
  uint index = workgroup_index(), steps = ceil_div(p.k, BK);
  TAKE_PART;
  group = index / (tiles_n * tiles_m);
  n = index % tiles_n * BN;
  first_row = index / tiles_n % tiles_m * BM;
  begin_x();
  begin_w();
  clear_acc();
  multiply_steps(ceil_div(steps, TURNS) * TURNS);
  ONCE_ALL_SUMS store_results();
}
