// Y[M,N] = X[M,K] W[N,K]^T for few rows of float16 on float16 matrix units with float32 sums, with int8
// weights or (GROUPED) weights in groups along K. The shader is like gemm_straight_coopmat.comp, but its loop
// has no barrier of the workgroup: each subgroup has its own part of k and its own part of shared memory. So
// some subgroups multiply while others wait for memory.
//
// Memory    gemv_pairs.glslh and gemv_groups.glslh declare the buffers. Shared memory has rows of x (BK
//           numbers along k) and rows of sums (outputs); 16 bytes of padding after a row keep neighbouring
//           rows in different banks.
// Threads   a workgroup computes BN outputs of a tile of rows, in matrices of BM rows. The subgroups' sums
//           are added in the same order every time.
// Needs     matrices of 16 outputs x 16 k and at most BM rows, and a required subgroup size.
//
//     k -->     | subgroup 0 | subgroup 1 | subgroup 2 | ...   w above x: each subgroup has a part of k, and
//   BN outputs  |            |            |            |       for it FRAGMENTS_M x FRAGMENTS_N matrices of
//               +------------+------------+------------+       sums, MN rows x MM outputs each
//   BM rows     |            |            |            |
//                 sums: shared memory, added from subgroup 0 on --> y, BM rows x BN outputs
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#if GROUPED
#extension GL_EXT_shader_16bit_storage : require
#endif
#extension GL_EXT_control_flow_attributes : require

#include "lane.glslh"
#include "sizes.glslh"
#include "float16.glslh"
layout(local_size_x_id = 0) in;
#include "push.glslh"
#include "workgroup.glslh"
#define lane own_lane
#define me gl_LocalInvocationIndex
// n, first_row: first output and first row of the workgroup. first_step, steps: first step and number of
// steps of the subgroup's part of k.
uint n, first_row, first_step, steps;

// gemv_pairs.glslh or gemv_groups.glslh declares the buffers and shared memory, and defines
//   DEPTH               the number of steps of an iteration of the loop
//   void begin()        set the position, load the steps of the first iteration, and clear the sums
//   TURN(t, more)       multiply DEPTH steps of the subgroup's part, from step t on. more: issue the loads of
//                       the steps after them; `more` is a constant, because loads in a branch wait for one
//                       another
//   void add_subgroups()   add the sums of all subgroups, then convert and store the results
#if GROUPED
#include "gemv_groups.glslh"
#else
#include "gemv_pairs.glslh"
#endif

void main() {
  begin();
  [[dont_unroll]] for (uint t = DEPTH; t < steps; t += DEPTH) { TURN(t - DEPTH, true) }
  TURN(steps - DEPTH, false)
  add_subgroups();
}
