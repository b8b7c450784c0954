// Y[M,N] = X[M,K] W[N,K]^T on float16 matrix units with float32 sums, like gemm_coopmat.comp, except that
// weights are loaded directly from memory into matrices, and converted to float16 there. The weights are
// int8, or quantized in groups along K (GROUPED). int8 weights are loaded as whole matrices, or as words from
// which invocations assemble matrices (WORDS). A subgroup computes all rows of a tile, so no other subgroup
// needs its weights. Only x goes through shared memory, whose bandwidth limits gemm_coopmat.comp.
//
// Memory    straight_pairs.glslh, straight_words.glslh and straight_groups.glslh declare the buffers. In
//           shared memory, a row has BK float16 numbers and then 16 bytes of padding, so that neighbouring
//           rows are in different banks.
// Threads   a workgroup of WGM x WGN subgroups computes BM x BN results; with SPLIT, it sums one part of k.
//           While a step is multiplied, x of the next steps and weights of later steps are being loaded.
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
#if GROUPED
#extension GL_EXT_shader_16bit_storage : require
#endif

#include "sizes.glslh"
#include "float16.glslh"
#include "push.glslh"
#include "workgroup.glslh"
#define thread gl_LocalInvocationIndex
uint n, first_row;  // the workgroup's first output and first row

// straight_pairs.glslh, straight_words.glslh or straight_groups.glslh declares the buffers and shared memory,
// includes coopmat_split.glslh, and defines
//   ALL_OUTPUTS, ALL_STEPS           the number of outputs and of steps of a group's product
//   void locate(uint index, uint tiles_n, uint tiles_m)   set the position of tile `index`
//   void begin()                     load the first steps
//   void multiply_steps(uint steps)  multiply `steps` steps, while loading later ones
//   void store_results()             convert and store the sums
#if GROUPED
#include "straight_groups.glslh"
#elif WORDS
#include "straight_words.glslh"
#else
#include "straight_pairs.glslh"
#endif

void main() {
  uint tiles_n = ceil_div(ALL_OUTPUTS, BN), tiles_m = ceil_div(p.m, BM);
  uint index = workgroup_index(), steps = ALL_STEPS;
  TAKE_PART;
  locate(index, tiles_n, tiles_m);
  begin();
  multiply_steps(steps);
  ONCE_ALL_SUMS store_results();
}
