// Y[M,N] = X[M,K] W[N,K]^T for few rows of floats like gemv_split.comp, with x in shared memory, a slice of
// k at a time: int8 weights, a single row with weights in groups (GROUPED, ROW), or several rows with such
// weights (GROUPED). It is for devices bound by memory latency or by
// instructions.
//
// Memory    as gemv_split.comp.
// Threads   a workgroup is blocks of columns x parts of k. Chunks or blocks of k are assigned to the parts
//           round-robin. The parts' sums are added in the same order every time.
// Needs     shared memory for a slice of x, and for the sums of all parts.
//
//     k -->    0   1   2  ..  parts-1   0   1  ..       chunks of k: which part sums them
//            +---+---+---+---+---------+---+---+---
//   blocks   |   |   |   |   |         |   |   |        w: an invocation sums a part of k for one block of
//   of       |   |   |   |   |         |   |   |        columns, with rows x columns sums in registers
//   columns  +---+---+---+---+---------+---+---+---
//   rows     | a slice                 | the next ..    x: in shared memory, brought by all
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

// The products declare LOCAL_X and LOCAL_Y, the buffers and
//   SLICE, along             chunks or blocks of k in a slice, and in all
//   void begin()             set the position, and request the first weights
//   void bring(uint slice)   load the slice of x whose first chunk is `slice` to shared memory
//   void multiply_slice(uint slice)   add the slice's products to this invocation's sums
//   void store_results()     add the parts' sums, convert and store them
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
