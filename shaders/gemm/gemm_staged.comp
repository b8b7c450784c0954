// Y[M,N] = X[M,K] W[N,K]^T through shared memory: float rows with int8 weights, float rows with weights in
// groups along K (GROUPED), or int8 rows with int8 weights and exact int32 accumulation (INT8). Also (CONV)
// an implicit GEMM: the rows of X are gathered from an image while the tile is loaded, without an im2col
// matrix.
//
// Memory    the buffers are those of the tiles below. Shared memory holds a step of k of the tile for each
//           slice of k, while the next step is in registers.
// Threads   a workgroup is LX x LY invocations x SLICES slices of k, and computes a tile of LY x LX (CONV of
//           floats: LX x LY) blocks; an invocation computes several of them, LY (LX) apart. The slices' sums
//           are added in order at the end.
//
//                       w tile: a step of k x columns
//   x tile:        +---------------+---------------+    y of a workgroup with 2 x 2 blocks an invocation:
//   rows x         | 0 1 .. (LX)   | 0 1 .. (LX)   |    a cell is a block of results, its number that of
//   a step of k    | .. (LY)       |               |    their invocation
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
#define INVOCATIONS (LX * LY)  // invocations of a slice

// The tiles declare the buffers and shared memory, and define
//   ALONG, STEP                 the k, and the k of a step of all slices, both in numbers or in blocks of
//                               four
//   void begin()                set the position, and load the first step
//   void multiply_step(uint k)  store the step at k to shared memory, load the next one, and multiply
//   void finish()               add the slices' sums, convert and store them
#if INT8
#include "staged_int8.glslh"
#elif GROUPED
#include "staged_groups.glslh"
#else
#include "staged_floats.glslh"
#endif

void main() {
  begin();
  for (uint k = 0u; k < ALONG; k += STEP) multiply_step(k);  // all slices iterate equally often
  finish();
}
