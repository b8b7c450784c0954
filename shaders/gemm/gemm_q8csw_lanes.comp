// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] like gemm_tiled.comp, except that the lanes of a
// subgroup share their loads of rows (common/float_lanes.glslh) and there is one group.
//
// Memory    x: float32 rows [m][k], read as texels of four (WHOLE_VECTORS) or as single numbers; w: int8 in
//           kPackedInt8_4N4K blocks [k4][n4]; channels: float32 parameters (float_output.glslh); y: float32
//           rows [m][n].
// Threads   a workgroup is one subgroup of LANES invocations. It computes ROWS rows x LANES blocks of four
//           channels. Of every LANES consecutive blocks of k, each lane reads one block, in all rows.
// Needs     shuffles; no shared memory and no barrier.
//
//   k -->   0 | 1 | 2 | .. LANES-1 |      the lane that reads a block of four k, of all ROWS rows
//   ROWS  +---+---+---+------------+      shuffles give each block to all lanes
//         +---+---+---+------------+
//   y     | 0 | 1 | 2 | .. LANES-1 |      the lane that has the ROWS x 4 sums of a block of four channels
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 3) const uint ROWS = 8;

#if WHOLE_VECTORS
layout(set = 0, binding = 0) uniform isamplerBuffer x;
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#endif
layout(set = 0, binding = 1) uniform isamplerBuffer w;
layout(set = 0, binding = 2) uniform isamplerBuffer channels;
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float_lanes.glslh"
#include "float_rows.glslh"

uint row, n4;
vec4 xs[ROWS];

void load_rows(uint k) {
  [[unroll]] for (uint i = 0u; i < ROWS; i++) xs[i] = load_row(min(row + i, p.m - 1u), k);
}

// Multiply the block of four k that lane `from` has read.
void multiply(uint from, uint k) {
  mat4 weights = weights_of_block(texelFetch(w, int(k * p.n4 + min(n4, p.n4 - 1u))));
  [[unroll]] for (uint i = 0u; i < ROWS; i++) sums[i] += subgroupShuffle(xs[i], from) * weights;
}

void main() {
  uint tiles_n = ceil_div(p.n4, LANES), tile = workgroup_index(), line = tile / tiles_n;
  n4 = (tile - line * tiles_n) * LANES + lane();
  row = line * ROWS;
  clear_sums(min(n4, p.n4 - 1u));
  uint k4 = ceil_div(p.k, 4u), whole = k4 - k4 % LANES;
  for (uint k = 0u; k < whole; k += LANES) {
    load_rows(k + lane());
    [[unroll]] for (uint l = 0u; l < LANES; l++) multiply(l, k + l);
  }
  load_rows(min(whole + lane(), k4 - 1u));
  for (uint k = whole; k < k4; k++) multiply(k - whole, k);
  [[unroll]] for (uint i = 0u; i < ROWS; i++) {
    vec4 values = output_values(sums[i], min(n4, p.n4 - 1u));
    [[unroll]] for (uint c = 0u; c < 4u; c++)
      if (row + i < p.m && 4u * n4 + c < p.channels) y[(row + i) * p.channels + 4u * n4 + c] = values[c];
  }
}
