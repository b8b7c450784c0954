// Y[N] = X[K] W[N,K]^T for a single row of float16 on float16 matrix units with float32 sums. The weights are
// int8, with few outputs, or (GROUPED) 4-bit in groups along K. An invocation requests all its weights at
// once, in loads of 16 bytes, and assembles the matrices in registers. Shared memory holds x and the scales
// and zero points, later the sums. There is no loop, because entering a loop waits for all outstanding loads.
//
// Memory    x: float16, K numbers as uvec4; y: float16; w and the scales: row_pairs.glslh and
//           row_groups.glslh state their order.
// Threads   a workgroup computes MM outputs; each subgroup has its own chunks of k. The subgroups' sums are
//           added in the same order every time.
// Needs     matrices of 16 outputs x 16 k and 8 rows, in which an invocation holds pairs of elements along k;
//           whole subgroups.
//
//     k -->     | subgroup 0 | subgroup 1 | subgroup 2 | ...   w: a subgroup adds the products of matrices of
//   MM outputs  |            |            |            |       MM outputs x 16 k to one matrix of sums;
//               +------------+------------+------------+       x: matrices of which only the first row is
//   x, one row  |            |            |            |       used
//                 sums: shared memory, added from subgroup 0 on --> y, MM outputs
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
#include "activation.glslh"
#define lane own_lane
#define me gl_LocalInvocationIndex

// row_pairs.glslh or row_groups.glslh declares the buffers and the subgroup's part of `tile`, which begins at
// `mine`, and defines
//   void begin()         find which words this invocation holds, and request all weights and x
//   void share()         store x, scales and zero points to the subgroup's part of `tile`
//   void multiply()      set the matrix SUMS_OF_PART to the products of the subgroup's part of k
//   bool stores_nothing()   return true if this invocation has no results
//   void store_results() add the sums of all subgroups, then convert and store the results
#if GROUPED
#include "row_groups.glslh"
#else
#include "row_pairs.glslh"
#endif

void main() {
  begin();
  share();
  subgroupBarrier();
  multiply();
  subgroupBarrier();
  coopMatStore(SUMS_OF_PART, tile, mine, SUM_ROW, gl_CooperativeMatrixLayoutColumnMajor);
  barrier();
  if (stores_nothing()) return;
  store_results();
}
