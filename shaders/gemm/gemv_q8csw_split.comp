// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] for few rows: float activations, int8 weights. Reading the
// weights limits the speed, so many threads share the sum over k.
//
// Memory    x: rows [group][m][k] of float32 or float16 (float_numbers.glslh); w: kPackedInt8_4N4K blocks
//           [group][k4][n4]; channels and y: float_output.glslh, y of the type of x.
// Threads   a workgroup is LOCAL_X column blocks x LOCAL_Y parts of k and computes ROWS rows. The parts' sums
//           are added in the same order every time.
// Needs     16 bytes of shared memory for each invocation and row.
//
//     k -->      0   1   2  ..  LOCAL_Y-1   0   1  ..     blocks of k: which part sums them
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

#include "sizes.glslh"
layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 4;
layout(constant_id = 1) const uint LOCAL_Y = 16;
layout(constant_id = 3) const uint UNROLL = 4;  // blocks along k that are read at once

#include "float_numbers.glslh"
#if WHOLE_VECTORS
layout(set = 0, binding = 0) readonly buffer X { StoredFour x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { Number x[]; };
#endif
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };

#define PART vec4
#define MOST_ROWS 8
#include "push.glslh"
#include "workgroup.glslh"
#include "float_weight.glslh"
#include "float_output.glslh"
#include "float_rows.glslh"
#include "split_sum.glslh"

void main() {
  uint tiles_n = ceil_div(p.n4, LOCAL_X), tiles_m = ceil_div(p.m, ROWS), k4 = ceil_div(p.k, 4u);
  uint tile = workgroup_index(), m = tile / tiles_n % tiles_m * ROWS, group = tile / tiles_n / tiles_m;
  uint column = tile % tiles_n * LOCAL_X + gl_LocalInvocationID.x;
  uint c4 = group * p.n4 + min(column, p.n4 - 1u), w_base = group * k4 * p.n4 + min(column, p.n4 - 1u);

  vec4 sums[MOST_ROWS] = {}, zeros = channel_block(c4, ZERO);
  for (uint first = gl_LocalInvocationID.y; first < k4; first += UNROLL * LOCAL_Y) {
    ivec4 words[UNROLL];
    [[unroll]] for (uint i = 0u; i < UNROLL; i++)
      words[i] = w[w_base + min(first + i * LOCAL_Y, k4 - 1u) * p.n4];
    [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
      uint k = first + i * LOCAL_Y;
      if (k < k4) {
        ivec4 block = words[i];
        mat4 columns = mat4(weights_of_channel(block.x, zeros.x), weights_of_channel(block.y, zeros.y),
            weights_of_channel(block.z, zeros.z), weights_of_channel(block.w, zeros.w));
        [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++)
          if (r < ROWS) sums[r] += load_row(group * p.m + min(m + r, p.m - 1u), k) * columns;
      }
    }
  }
  sum_parts(sums);
  if (gl_LocalInvocationID.y == 0u && column < p.n4) {
    [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++)
      if (r < ROWS && m + r < p.m) store_row(m + r, c4, output_values(sums[r], c4));
  }
}
