// Y[M,N] = X[M,K] W[N,K]^T on matrix units (VK_KHR_cooperative_matrix, subgroup scope), for matrices or
// (CONV) as an implicit GEMM on images: floats with int8 weights and float32 sums, or (INT8) int8 with exact
// int32 accumulation.
//
// Memory    coopmat_int8.glslh and coopmat_floats.glslh declare the buffers. In shared memory, a row of x or
//           of w (an output) has BK numbers and then 16 bytes of padding, so that neighbouring rows are in
//           different banks.
// Threads   a workgroup of WGM x WGN subgroups computes BM x BN results (coopmat_pipeline.glslh); with SPLIT,
//           it sums one part of k.
// Needs     the matrix shape MM x MN x MK in the device's list, and a required subgroup size of SUBGROUP.
//
//           <------ BN outputs ------>
//         ^ +------------+------------+          subgroup 1: FRAGMENTS_M x FRAGMENTS_N matrices of
//         | | subgroup 0 | subgroup 1 | ------>  MN rows x MM outputs, in registers
//    BM   | +------------+------------+          +---------+---------+---------+
//   rows  | | subgroup 2 | subgroup 3 |          | MN x MM | MN x MM | MN x MM |
//         v +------------+------------+          +---------+---------+---------+
//            here WGM x WGN = 2 x 2              | MN x MM | MN x MM | MN x MM |
//                                                +---------+---------+---------+
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#if INT8
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#elif defined(BRAIN)
#extension GL_EXT_bfloat16 : require
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#extension GL_EXT_control_flow_attributes : require
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

#include "sizes.glslh"
#include "push.glslh"
#include "workgroup.glslh"
uint group, n, first_row;  // the workgroup's group, first output and first row

// coopmat_int8.glslh or coopmat_floats.glslh declares the buffers and shared memory of the tiles. It includes
// coopmat_split.glslh and coopmat_pipeline.glslh, defines the loads and stores that these two call, and
// defines
//   ROWS, ALL_OUTPUTS, ALL_STEPS   the number of rows, outputs and steps of a group's product
//   count_of(steps)            the number of steps to compute for a part of k that has `steps` steps
//   void begin_loads()         set the offsets of this invocation's row of x and output of w
//   void store_tile()          convert and store the sums
#if INT8
#include "coopmat_int8.glslh"
#else
#include "coopmat_floats.glslh"
#endif

void main() {
  uint tiles_n = ceil_div(ALL_OUTPUTS, BN), tiles_m = ceil_div(ROWS, BM);
  uint index = workgroup_index(), steps = ALL_STEPS;
  TAKE_PART;
  group = index / (tiles_n * tiles_m);
  n = index % tiles_n * BN;
  first_row = index / tiles_n % tiles_m * BM;
  begin_loads();
  clear_acc();
  multiply_steps(count_of(steps));
  ONCE_ALL_SUMS store_tile();
}
