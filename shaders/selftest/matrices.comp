// Self-test of matrix units: sums of int8 products of known values. As in the kernels, operands are loaded
// from shared memory with k contiguous, and results are stored column-major.
//
// Memory    x: [case][step][row][k] and w: [case][step][output][k], int8, 16 k in a uvec4; y: int32
//           [case][row][output].
// Threads   a workgroup is one subgroup and computes one case.
// Needs     the matrix shape MM x MN x MK in the device's list, and a required subgroup size of SUBGROUP.
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 13) in;

layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) writeonly buffer Y { uvec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;  // number of cases
  uint steps;
} p;

#include "workgroup.glslh"
#include "coopmat_types.glslh"
const uint RUNS = MK / 16;
shared uvec4 rows[MN * RUNS], outputs[MM * RUNS], results[MN * (MM / 4)];

void main() {
  uint index = workgroup_index(), lane = gl_LocalInvocationIndex;
  MatrixW left;
  MatrixX right;
  MatrixAcc acc = matrix_of_zeros();
  [[dont_unroll]] for (uint s = 0u; s < p.steps; s++) {
    barrier();
    for (uint i = lane; i < MN * RUNS; i += SUBGROUP) rows[i] = x[(index * p.steps + s) * MN * RUNS + i];
    for (uint i = lane; i < MM * RUNS; i += SUBGROUP) outputs[i] = w[(index * p.steps + s) * MM * RUNS + i];
    barrier();
    coopMatLoad(left, outputs, 0, RUNS, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(right, rows, 0, RUNS, gl_CooperativeMatrixLayoutColumnMajor);
    acc = coopMatMulAdd(left, right, acc);
  }
  coopMatStore(acc, results, 0, MM / 4, gl_CooperativeMatrixLayoutColumnMajor);
  barrier();
  for (uint i = lane; i < MN * (MM / 4); i += SUBGROUP) y[index * MN * (MM / 4) + i] = results[i];
}
