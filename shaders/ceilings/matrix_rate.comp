// Measure the int8 rate of a device's matrix units (VK_KHR_cooperative_matrix): multiply matrices that stay
// in registers. Every element of an accumulator grows by MK * a * b in each multiplication, so the host can
// verify the sums.
//
// Memory    y: int32 matrices of MM x MN, one for each subgroup.
// Threads   each subgroup adds to CHAINS accumulators of MM x MN, and stores their sum.
// Needs     the matrix shape MM x MN x MK in the device's list, and a required subgroup size of SUBGROUP.
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;

layout(set = 0, binding = 0) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint groups;
  uint loops;
  int a, b;  // value of all elements of the left and of the right matrix
} p;

#include "workgroup.glslh"
#include "coopmat_types.glslh"
#define CHAINS 8

void main() {
  MatrixW a = MatrixW(Element(p.a));
  MatrixX b = MatrixX(Element(p.b));
  MatrixAcc acc[CHAINS];
  [[unroll]] for (int c = 0; c < CHAINS; c++) acc[c] = matrix_of_zeros();
  for (uint loop = 0u; loop < p.loops; loop++)
    [[unroll]] for (int s = 0; s < PER_LOOP; s++)
      [[unroll]] for (int c = 0; c < CHAINS; c++) acc[c] = coopMatMulAdd(a, b, acc[c]);
  [[unroll]] for (int c = 1; c < CHAINS; c++) acc[0] += acc[c];
  uint place = (workgroup_index() * gl_NumSubgroups + gl_SubgroupID) * MM * MN;
  coopMatStore(acc[0], y, place, MN, gl_CooperativeMatrixLayoutRowMajor);
}
