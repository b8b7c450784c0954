// Y[M,N] = X[M,K] W[N,K]^T on float16 matrix units with float32 sums, like gemm_coopmat.comp, except that
// weights are loaded directly from memory into matrices, where they become float16: int8 weights as whole
// matrices or (WORDS) assembled in registers, or weights in groups along K (GROUPED). A subgroup computes all
// rows of a tile, so no other subgroup needs its weights. Only x goes through shared memory: the bandwidth of
// shared memory limits gemm_coopmat.comp.
//
// Memory    the buffers are those of the weights below. In shared memory a row is a run of BK halves and 16
//           bytes of padding, which keep neighbours in different banks.
// Threads   a workgroup of WGM x WGN subgroups computes BM x BN results; SPLIT: for one part of k. While a
//           step is multiplied, x of the next steps and weights of later ones are being loaded.
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

// The weights declare the buffers and shared memory, include coopmat_split.glslh, and define
//   ALL_OUTPUTS, ALL_STEPS           outputs and steps of a group's product
//   void locate(uint index, uint tiles_n, uint tiles_m)   set the position of tile `index`
//   void begin()                     load the first steps
//   void multiply_steps(uint steps)  multiply, and load further steps
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
