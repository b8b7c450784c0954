// Find which words (two float16 elements each) of a 16 x 16 matrix of weights each invocation of a subgroup
// holds. vkq.probe.words reads the result; the host then stores weights in this order.
//
// Memory    w: float16 matrix, row-major, two elements in a word; y: uint32, for each invocation the words
//           that it holds.
// Threads   one workgroup of one subgroup.
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 13) in;  // SUBGROUP invocations
layout(set = 0, binding = 0) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 1) writeonly buffer Y { uint y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "coopmat_half_types.glslh"

shared uvec4 tile[32];
MatrixW low;

void main() {
  uint me = gl_LocalInvocationIndex;
  for (uint i = me; i < 32u; i += SUBGROUP) tile[i] = w[i];
  barrier();
  coopMatLoad(low, tile, 0u, 2, gl_CooperativeMatrixLayoutRowMajor);
  [[unroll]] for (uint q = 0u; q < WORDS_W; q++)
    if (me * WORDS_W + q < p.count) y[me * WORDS_W + q] = word_of_matrix(low, q);
}
