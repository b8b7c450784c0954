// Y[M,N] = X[M,K] W[N,K]^T + bias[N], like gemv_split.comp, for devices bound by instructions and not
// by memory: the workgroup loads x to shared memory, each invocation uses it for eight columns, and codes are
// converted two at a time (common/grouped_pairs.glslh).
//
// Memory    as gemv_split.comp.
// Threads   a workgroup is LOCAL_Y parts of k, a power of two from 8 on, and computes TILE_M rows of eight
//           columns. Chunks of k are assigned to the parts round-robin.
// Needs     shared memory for each invocation and row: 16 bytes for each 4 codes of a chunk, and 48 more.
//
//     k -->    0   1   2  ..  LOCAL_Y-1   0   1  ..     chunks of k: which part sums them
//            +---+---+---+---+-----------+---+---+---
//   eight    |   |   |   |   |           |   |   |      w: an invocation sums a part of k for eight columns,
//   columns  +---+---+---+---+-----------+---+---+---   with TILE_M x 8 sums in registers
//   TILE_M   |                           |              x: LOCAL_Y chunks in shared memory, brought by all
//   rows     +---------------------------+---
//              the sums of LOCAL_Y parts: shared memory, a tree --> y, TILE_M x 8
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#if HALVES
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

layout(local_size_y_id = 1) in;
layout(constant_id = 1) const uint LOCAL_Y = 32;
layout(constant_id = 3) const bool HALF_SCALES = false;

#include "float_numbers.glslh"
layout(set = 0, binding = 0) readonly buffer X { StoredFour x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Groups { uint w_groups[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };

#define ROWS (TILE_M * 2)  // rows of sums: the first four columns of each row, then the last four
#define LOCAL_X 1
#define PART vec4
#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"
#include "grouped_weight.glslh"
#include "grouped_pairs.glslh"
#include "split_sum.glslh"

#define COLUMNS 8u
#define CHUNK (4 * VECTORS)  // vec4 of x
#define lane gl_LocalInvocationID.y
const uint X_ROW = LOCAL_Y * (CHUNK + 1);
shared vec4 x_tile[TILE_M * X_ROW];  // [row][part][CHUNK + 1]: neighbours are in different banks

// Load the chunks of all parts, from chunk `first` on, for the rows from m on.
void stage(uint m, uint first) {
  uint to = lane + lane / CHUNK, from = first * CHUNK + lane, all = p.k / 4u;
  barrier();  // the previous chunks have been read
  [[unroll]] for (uint r = 0u; r < TILE_M; r++) {
    uint row = min(m + r, p.m - 1u) * all;
    [[unroll]] for (uint j = 0u; j < CHUNK; j++)  // no branch: loads in a branch wait for each other
      x_tile[r * X_ROW + to + j * (LOCAL_Y + LOCAL_Y / CHUNK)] =
          floats_of(x[row + min(from + j * LOCAL_Y, all - 1u)]);
  }
  barrier();
}

void multiply_chunk(uvec4 words[COLUMNS], vec2 both[COLUMNS], inout vec4 sums[ROWS]) {
  float dots[TILE_M][COLUMNS] = {};
  Pair low[COLUMNS], high[COLUMNS];
  [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
    low[c] = low_of(both[c].y);
    high[c] = high_of(both[c].y);
  }
  [[unroll]] for (uint i = 0u; i < 4u; i++) {
    vec4 values[TILE_M][VECTORS];
    [[unroll]] for (uint r = 0u; r < TILE_M; r++)
      [[unroll]] for (uint v = 0u; v < VECTORS; v++)
        values[r][v] = x_tile[r * X_ROW + lane * (CHUNK + 1) + i * VECTORS + v];
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
      vec4 weights[VECTORS];
      paired_weights(words[c][i], low[c], high[c], weights);
      [[unroll]] for (uint r = 0u; r < TILE_M; r++)
        [[unroll]] for (uint v = 0u; v < VECTORS; v++)
          [[unroll]] for (uint k = 0u; k < 4u; k++) dots[r][c] += values[r][v][k] * weights[v][k];
    }
  }
  [[unroll]] for (uint r = 0u; r < TILE_M; r++)
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++)
      sums[2u * r + c / 4u][c % 4u] += dots[r][c] * both[c].x;
}

void main() {
  uint tiles_n = ceil_div(p.n, COLUMNS), tile = workgroup_index();
  uint m = tile / tiles_n * TILE_M, n = tile % tiles_n * COLUMNS;
  uint chunks = p.k * BITS / 128u, groups = p.k / p.group;
  uint per_group = findMSB(p.group * BITS / 128u);  // log2 of a group's chunks
  uint w_at[COLUMNS], group_at[COLUMNS];
  [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
    uint column = min(n + c, p.n - 1u);
    w_at[c] = column * chunks;
    group_at[c] = column * groups;
  }
  vec4 sums[ROWS] = {};
  for (uint first = 0u; first < chunks; first += LOCAL_Y) {
    uint chunk = min(first + lane, chunks - 1u);
    uvec4 words[COLUMNS];
    vec2 both[COLUMNS];
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) words[c] = w[w_at[c] + chunk];
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++)
      both[c] = scale_and_zero(group_at[c] + (chunk >> per_group));
    stage(m, first);
    if (first + lane < chunks) multiply_chunk(words, both, sums);
  }
  sum_parts(sums);
  if (lane < ROWS) {
    uint row = m + lane / 2u, column = n + lane % 2u * 4u;
    vec4 found = parts[lane * LOCAL_Y];
    [[unroll]] for (uint c = 0u; c < 4u; c++)
      if (row < p.m && column + c < p.n)
        store_number(y, row * p.n + column + c, bounded(found[c] + bias_of(column + c, p.n * groups)));
  }
}
