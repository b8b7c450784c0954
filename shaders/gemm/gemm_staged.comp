// Y[M,N] = X[M,K] W[N,K]^T through shared memory: float rows with int8 weights, float rows with weights in
// groups along K (GROUPED), or int8 rows with int8 weights and exact int32 accumulation (INT8). With CONV, an
// implicit GEMM: the rows of X are gathered from an image while the tile is loaded, without an im2col matrix.
//
// Memory    staged_floats.glslh, staged_groups.glslh and staged_int8.glslh declare the buffers. Shared memory
//           holds one step of k (INT8: two steps) of both tiles for each slice of k; the next step is in
//           registers.
// Threads   a workgroup is LX x LY invocations for each of SLICES slices of k. An invocation computes one or
//           several blocks of results, which are LY blocks apart along the rows of y and LX blocks apart
//           along its columns (with CONV, for floats: LX along the rows, LY along the columns). At the end,
//           the slices' sums are added in order.
//
//                       w tile: a step of k x columns
//   x tile:        +---------------+---------------+    y of a workgroup whose invocations compute 2 x 2
//   rows x         | 0 1 .. (LX)   | 0 1 .. (LX)   |    blocks: a cell is a block of results, its number
//   a step of k    | .. (LY)       |               |    the invocation that computes it
//                  +---------------+---------------+
//                  | 0 1 .. (LX)   | 0 1 .. (LX)   |    shared memory: a step of each slice of k
//                  | .. (LY)       |               |    registers: sums, and the next step
//                  +---------------+---------------+
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#if INT8 && !defined(FLOAT_LANES)
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x = LX, local_size_y = LY, local_size_z = SLICES) in;
#include "push.glslh"
#include "workgroup.glslh"
#define slice gl_LocalInvocationID.z
#define INVOCATIONS (LX * LY)  // invocations for one slice of k

// staged_floats.glslh, staged_groups.glslh or staged_int8.glslh declares the buffers and shared memory, and
// defines
//   ALONG, STEP                 the length of K, and the length of one step of all slices, in the same unit:
//                               numbers or blocks of four
//   void begin()                set the position, and load the first step
//   void multiply_step(uint k)  store the loaded step at k to shared memory, load the next one, and multiply
//   void finish()               add the slices' sums, then convert and store the results
#if INT8
#include "staged_int8.glslh"
#elif GROUPED
#include "staged_groups.glslh"
#else
#include "staged_floats.glslh"
#endif

void main() {
  begin();
  for (uint k = 0u; k < ALONG; k += STEP) multiply_step(k);  // all slices run the same number of iterations
  finish();
}
