// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n]: float32 activations, int8 weights (scheme q8csw), float32
// sums over k in order. It needs no shared memory and runs on every device.
//
// Memory    x: float32 rows [group][m][k]; w: kPackedInt8_4N4K blocks [group][k4][n4]; channels and y:
//           float_output.glslh.
// Threads   a workgroup is LOCAL_X x LOCAL_Y invocations; each computes TILE_M rows x TILE_N4 blocks of four
//           channels, LOCAL_Y (LOCAL_X) apart.
//
//   y of a workgroup, TILE_M = TILE_N4 = 2: a cell is 1 x 4 results, its number
//   that of their invocation
//       LOCAL_X       LOCAL_X
//     +---+---+-   +---+---+-
//     | 0 | 1 |..  | 0 | 1 |..     LOCAL_Y     an invocation: sums of all its cells in registers, k after k;
//     +---+---+-   +---+---+-                  operands straight from memory
//     | 0 | 1 |..  | 0 | 1 |..     LOCAL_Y
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;

#if WHOLE_VECTORS
layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#endif
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float_weight.glslh"
#include "float_output.glslh"
#include "float_rows.glslh"

void main() {
  uint tiles_n = ceil_div(p.n4, LOCAL_X * TILE_N4), tiles_m = ceil_div(p.m, LOCAL_Y * TILE_M);
  uint tile = workgroup_index(), group = tile / (tiles_n * tiles_m), k4 = ceil_div(p.k, 4u);
  uint n4 = tile % tiles_n * LOCAL_X * TILE_N4 + gl_LocalInvocationID.x;
  uint m = tile / tiles_n % tiles_m * LOCAL_Y * TILE_M + gl_LocalInvocationID.y;

  uint rows[TILE_M], w_at[TILE_N4];
  vec4 sums[TILE_M][TILE_N4], zeros[TILE_N4];
  [[unroll]] for (uint i = 0u; i < TILE_M; i++) {
    rows[i] = group * p.m + min(m + i * LOCAL_Y, p.m - 1u);
    [[unroll]] for (uint j = 0u; j < TILE_N4; j++) sums[i][j] = vec4(0.0);
  }
  [[unroll]] for (uint j = 0u; j < TILE_N4; j++) {
    uint column = min(n4 + j * LOCAL_X, p.n4 - 1u);
    w_at[j] = group * k4 * p.n4 + column;
    zeros[j] = channel_block(group * p.n4 + column, ZERO);
  }
  for (uint k = 0u; k < k4; k++) {
    mat4 columns[TILE_N4];
    [[unroll]] for (uint j = 0u; j < TILE_N4; j++) {
      ivec4 words = w[w_at[j] + k * p.n4];
      columns[j] = mat4(weights_of_channel(words.x, zeros[j].x), weights_of_channel(words.y, zeros[j].y),
          weights_of_channel(words.z, zeros[j].z), weights_of_channel(words.w, zeros[j].w));
    }
    [[unroll]] for (uint i = 0u; i < TILE_M; i++) {
      vec4 values = load_row(rows[i], k);
      [[unroll]] for (uint j = 0u; j < TILE_N4; j++) sums[i][j] += values * columns[j];
    }
  }
  [[unroll]] for (uint j = 0u; j < TILE_N4; j++) {
    uint column = n4 + j * LOCAL_X, c4 = group * p.n4 + column;
    [[unroll]] for (uint i = 0u; i < TILE_M; i++)
      if (column < p.n4 && m + i * LOCAL_Y < p.m)
        store_row(m + i * LOCAL_Y, c4, output_values(sums[i][j], c4));
  }
}
