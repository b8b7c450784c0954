// Y[M,N] = X[M,K] W[N,K]^T for few rows of floats, like gemv_split.comp, but shared memory holds one slice of
// x at a time. Weights are int8, or in groups along K (GROUPED; with ROW, for a single row). The shader is
// for devices on which memory latency or the number of instructions limits the speed.
//
// Memory    the buffers of gemv_split.comp.
// Threads   the invocations of a workgroup are a grid of blocks of columns x parts of k. Chunks or blocks of
//           k are assigned to the parts round-robin. The parts' sums are added in the same order every time.
// Needs     shared memory for a slice of x, and for the sums of all parts.
//
//     k -->    0   1   2  ..  parts-1   0   1  ..       the part of k that sums a chunk of k
//            +---+---+---+---+---------+---+---+---
//   blocks   |   |   |   |   |         |   |   |        w: an invocation sums a part of k for one block of
//   of       |   |   |   |   |         |   |   |        columns, with rows x columns sums in registers
//   columns  +---+---+---+---+---------+---+---+---
//   rows     | a slice                 | the next ..    x: all invocations load a slice into shared memory
//            +-------------------------+-----------
//              the sums of all parts: shared memory --> y
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#if HALVES
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

#include "sizes.glslh"
layout(local_size_y_id = 1) in;
#include "float_numbers.glslh"
#include "push.glslh"
#include "workgroup.glslh"

// shared_floats.glslh, shared_row.glslh or shared_rows.glslh declares LOCAL_X, LOCAL_Y and the buffers, and
// defines
//   SLICE, along             the number of chunks (or blocks) of k in a slice, and in K
//   void begin()             set the position, and request the first weights
//   void bring(uint slice)   load the slice of x whose first chunk is `slice` into shared memory
//   void multiply_slice(uint slice)   add the slice's products to this invocation's sums
//   void store_results()     add the parts' sums, then convert and store the results
#if !GROUPED
#include "shared_floats.glslh"
#elif ROW
#include "shared_row.glslh"
#else
#include "shared_rows.glslh"
#endif

void main() {
  begin();
  for (uint slice = 0u; slice < along; slice += SLICE) {
    bring(slice);
    multiply_slice(slice);
  }
  store_results();
}
