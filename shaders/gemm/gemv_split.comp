// Y[M,N] = X[M,K] W[N,K]^T for few rows: float rows with int8 weights, float rows with weights in groups
// along K (GROUPED), or int8 rows with int8 weights and exact int32 accumulation (INT8). Reading the weights
// limits the speed, so many invocations share the sum over k.
//
// Memory    split_floats.glslh, split_groups.glslh and split_int8.glslh declare the buffers. Neighbouring
//           invocations read neighbouring words of w.
// Threads   a workgroup is LOCAL_X blocks of four columns x LOCAL_Y parts of k, and computes ROWS rows. A
//           tree adds the parts' sums, in the same order every time.
// Needs     16 bytes of shared memory for each invocation and row.
//
//     k -->      0   1   2  ..  LOCAL_Y-1   0   1  ..     the part of k that sums a block of k
//             +---+---+---+---+-----------+---+---+---
//   LOCAL_X   |   |   |   |   |           |   |   |       w: an invocation sums a part of k for one block of
//   blocks    |   |   |   |   |           |   |   |       four columns, with ROWS x 4 sums in registers
//             +---+---+---+---+-----------+---+---+---
//               the sums of LOCAL_Y parts: shared memory, a tree --> y, ROWS x 4 LOCAL_X
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif
#if INT8 && !defined(FLOAT_LANES)
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0, local_size_y_id = 1) in;
#include "push.glslh"
#include "workgroup.glslh"

// split_floats.glslh, split_groups.glslh or split_int8.glslh declares the buffers, LOCAL_X, LOCAL_Y and the
// array `sums` of ROWS rows, includes split_sum.glslh for the type of these sums, and defines
//   void multiply()        set `sums` to the products of this invocation's part of k
//   void store_results()   convert and store the sums; all invocations call it
#define part gl_LocalInvocationID.y
#if INT8
#include "split_int8.glslh"
#elif GROUPED
#include "split_groups.glslh"
#else
#include "split_floats.glslh"
#endif

void main() {
  multiply();
  sum_parts(sums);
  store_results();
}
