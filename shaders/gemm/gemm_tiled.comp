// Y[M,N] = X[M,K] W[N,K]^T, with sums in registers: float rows with int8 weights, float32 or float16 matrices
// with the same bits on every device (F32), products and convolutions in float16 arithmetic (HALVES), or int8
// with exact int32 accumulation (INT8). Operands are read directly from memory. HALVES needs float16
// arithmetic; the other products run on every device.
//
// Memory    tiled_floats.glslh, tiled_f32.glslh, tiled_halves.glslh and tiled_int8.glslh declare the buffers.
// Threads   a workgroup is LOCAL_X x LOCAL_Y invocations, with F32 for each of SLICES parts of k. An
//           invocation computes several blocks of results. Its blocks are LOCAL_X blocks apart along a row
//           and LOCAL_Y blocks along a column, so that neighbouring invocations load neighbouring blocks.
//
//   y of a workgroup whose invocations compute two blocks along each axis: a cell is a block of results, its
//   number the invocation that computes it
//       LOCAL_X       LOCAL_X
//     +---+---+-   +---+---+-
//     | 0 | 1 |..  | 0 | 1 |..     LOCAL_Y     an invocation has the sums of all its cells in registers, and
//     +---+---+-   +---+---+-                  reads operands directly from memory, k after k
//     | 0 | 1 |..  | 0 | 1 |..     LOCAL_Y
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#if HALVES
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#if HALVES && !WORDS
#extension GL_EXT_shader_16bit_storage : require
#endif
#if INT8 && !defined(FLOAT_LANES)
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
#include "push.glslh"
#include "workgroup.glslh"

// tiled_floats.glslh, tiled_f32.glslh, tiled_halves.glslh or tiled_int8.glslh declares the buffers, and
// defines
//   void begin()          set the position and clear the sums
//   void sum_products()   add all products of this invocation
//   void finish()         convert and store the sums
#if INT8
#include "tiled_int8.glslh"
#elif HALVES
#include "tiled_halves.glslh"
#elif F32
#include "tiled_f32.glslh"
#else
#include "tiled_floats.glslh"
#endif

void main() {
  begin();
  sum_products();
  finish();
}
