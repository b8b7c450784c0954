// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n], like gemv_split.comp, for devices bound by memory
// latency: the next blocks of weights are prefetched while the current ones are multiplied, and x is in
// shared memory, a slice of k at a time. A few invocations load x, so that the others request weights at
// once: an invocation that requests both waits for both, and x that is requested after weights arrives after
// them.
//
// Memory    as gemv_split.comp; y: rows of channels.
// Threads   a workgroup is LOCAL_X column blocks x LOCAL_Y parts of k and computes ROWS rows. A part
//           multiplies every LOCAL_Y-th block of a slice (SLICE blocks of k), UNROLL at a time.
// Needs     16 bytes of shared memory for each block and row of a slice, or for each invocation and SUMMED
//           rows, whichever needs more.
//
//     k -->      0   1   2  ..  LOCAL_Y-1   0   1  ..     blocks of k: which part sums them
//             +---+---+---+---+-----------+---+---+---
//   LOCAL_X   |   |   |   |   |           |   |   |       w: an invocation sums a part of k for one block of
//   blocks    |   |   |   |   |           |   |   |       four columns, with ROWS x 4 sums in registers
//             +---+---+---+---+-----------+---+---+---
//               the sums of LOCAL_Y parts: shared memory, in fours --> y, ROWS x 4 LOCAL_X
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 32;

#include "float_numbers.glslh"
#if WHOLE_VECTORS
layout(set = 0, binding = 0) readonly buffer X { StoredFour x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { Number x[]; };
#endif
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };

#define NO_STORE_ROW
#define MOST_ROWS 8
#define MOST_UNROLL 4
#include "push.glslh"
#include "workgroup.glslh"
#define UNKNOWN_ZERO gl_WorkGroupID.z
#include "float_weight.glslh"
#include "float_output.glslh"
#include "float_rows.glslh"

#define me gl_LocalInvocationIndex
#define part gl_LocalInvocationID.y
const uint ALL = LOCAL_X * LOCAL_Y, STEP = UNROLL * LOCAL_Y, TAKERS = ALL / TAKEN_BY;
const uint X_SIZE = ROWS * SLICE, SUMS_SIZE = SUMMED * ALL;
shared vec4 tile[X_SIZE > SUMS_SIZE ? X_SIZE : SUMS_SIZE];  // x [row][block], then sums [row][part][column]

uint k4, m, row, weights;  // blocks along k; first row, in its group and in x; first block of weights
ivec4 next[MOST_UNROLL];
vec4 sums[MOST_ROWS];
StoredRow taken[X_SIZE / TAKERS];

void load(uint first) {
  [[unroll]] for (uint i = 0u; i < MOST_UNROLL; i++)
    if (i < UNROLL) next[i] = w[weights + min(first + i * LOCAL_Y + part, k4 - 1u) * p.n4];
}

// Load a slice of x with TAKERS invocations. Only the store waits for the load; it makes numbers beyond k
// zero.
void take(uint slice) {
  [[unroll]] for (uint i = 0u; i < X_SIZE / TAKERS; i++) {
    uint r = (me + i * TAKERS) / SLICE, k = slice + (me + i * TAKERS) % SLICE;
    taken[i] = stored_row(row + min(r, p.m - 1u - m), min(k, k4 - 1u));
  }
}

void store(uint slice) {
  [[unroll]] for (uint i = 0u; i < X_SIZE / TAKERS; i++) {
    uint k = slice + (me + i * TAKERS) % SLICE;
    tile[me + i * TAKERS] = k < k4 ? floats_of(taken[i]) : vec4(0.0);
  }
}

void bring(uint slice) {
  if (me >= TAKERS) return;
  take(slice);
  store(slice);
}

void multiply(ivec4 block, vec4 zeros, uint at) {
  vec4 values[MOST_ROWS];
  [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++)
    if (r < ROWS) values[r] = tile[r * SLICE + at];
  [[unroll]] for (uint c = 0u; c < 4u; c++) {
    vec4 column = weights_of_channel(block[c], zeros[c]);
    [[unroll]] for (uint k = 0u; k < 4u; k++)
      [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++)
        if (r < ROWS) sums[r][c] += values[r][k] * column[k];
  }
}

// Add the parts of SUMMED rows from `first` on: for each number, first in groups of four parts, then the
// groups' sums. Afterwards, number i of row r is in summed(r, i).
#define WIDE (4u * LOCAL_X)
#define place(r, i) tile[((r) * ALL + (i)) / 4u][(i) % 4u]
void sum_parts(uint first) {
  float fours[SUMMED];
  barrier();
  [[unroll]] for (uint r = 0u; r < SUMMED; r++) tile[r * ALL + me] = sums[first + r];
  barrier();
  [[unroll]] for (uint r = 0u; r < SUMMED; r++) {
    fours[r] = 0.0;
    [[unroll]] for (uint j = 0u; j < 4u; j++)
      fours[r] += tile[r * ALL + (me / WIDE * 4u + j) * LOCAL_X + me % WIDE / 4u][me % 4u];
  }
  barrier();
  [[unroll]] for (uint r = 0u; r < SUMMED; r++) place(r, me) = fours[r];
  barrier();
}

float summed(uint r, uint i) {
  vec4 four = vec4(0.0);
  for (uint s = 0u; s < LOCAL_Y / 4u; s += 4u)
    [[unroll]] for (uint j = 0u; j < 4u; j++) four[j] += place(r, (s + j) * WIDE + i);
  return (four.x + four.y) + (four.z + four.w);
}

void main() {
  uint tiles_n = ceil_div(p.n4, LOCAL_X), tiles_m = ceil_div(p.m, ROWS), tile_index = workgroup_index();
  uint group = 0u, tile_n = tile_index;
  m = 0u;
  if (p.groups * tiles_m > 1u) {  // rare; skipped if possible, because the weights wait for the divisions
    group = tile_index / tiles_n / tiles_m;
    tile_n = tile_index % tiles_n;
    m = tile_index / tiles_n % tiles_m * ROWS;
  }
  uint first = tile_n * LOCAL_X, column = min(first + gl_LocalInvocationID.x, p.n4 - 1u);
  k4 = ceil_div(p.k, 4u);
  row = group * p.m + m;
  weights = group * k4 * p.n4 + column;
  bring(0u);
  load(0u);
  vec4 zeros = channel_block(group * p.n4 + column, ZERO);
  // The one column that this invocation stores.
  uint block = first + me % WIDE / 4u, c = 4u * (group * p.n4 + block) + me % 4u;
  uint c4 = group * p.n4 + min(block, p.n4 - 1u);
  float scale = channel_block(c4, SCALE)[me % 4u], bias = channel_block(c4, BIAS)[me % 4u];
  [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++) sums[r] = vec4(0.0);
  for (uint slice = 0u; slice < k4; slice += SLICE) {
    if (slice > 0u) {
      barrier();  // the previous slice has been read
      if (TAKEN_BY == 1) store(slice);
      else bring(slice);
    }
    barrier();
    // If all invocations load and wait for x, request the next slice now.
    if (TAKEN_BY == 1 && slice + SLICE < k4) take(slice + SLICE);
    [[dont_unroll]] for (uint at = 0u; at < min(SLICE, k4 - slice); at += STEP) {
      ivec4 blocks[MOST_UNROLL] = next;
      load(slice + at + STEP);
      [[unroll]] for (uint i = 0u; i < UNROLL; i++) multiply(blocks[i], zeros, at + i * LOCAL_Y + part);
    }
  }
  [[unroll]] for (uint some = 0u; some < ROWS; some += SUMMED) {
    sum_parts(some);
    for (uint i = me; i < SUMMED * WIDE; i += ALL) {
      uint r = m + some + i / WIDE;
      float value = bounded(summed(i / WIDE, i % WIDE) * scale + bias);
      if (r < p.m && block < p.n4 && c < p.channels)
        store_number(y, r * p.channels + c, value);
    }
  }
}
