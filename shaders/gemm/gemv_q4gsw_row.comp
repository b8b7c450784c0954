// Y[M,N] = X[M,K] W[N,K]^T + bias[N], like gemv_split.comp, for a single row (several rows one by one)
// on devices bound by instructions and memory latency. x is in shared memory, a slice of k at a time. The
// next words are loaded while the current ones are multiplied. Codes are converted two at a time
// (common/grouped_pairs.glslh).
//
// Memory    as gemv_split.comp.
// Threads   a workgroup is LOCAL_X parts of k x LOCAL_Y blocks of COLUMNS columns, powers of two. Chunks of k
//           are assigned to the parts round-robin.
// Needs     16 bytes of shared memory for each 4 codes of 128 chunks, 16 of padding for each chunk, and 4 for
//           each part and column.
//
//     k -->    0   1   2  ..  LOCAL_X-1   0   1  ..     chunks of k: which part sums them
//            +---+---+---+---+-----------+---+---+---
//   LOCAL_Y  |   |   |   |   |           |   |   |      w: an invocation sums a part of k for one block of
//   blocks   +---+---+---+---+-----------+---+---+---   COLUMNS columns, with as many sums in registers
//   one row  | a slice, 128 chunks                |     x: in shared memory, brought by all
//            +------------------------------------+
//              the sums of LOCAL_X parts: shared memory, in fours --> y, LOCAL_Y x COLUMNS
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#if HALVES
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 32;
layout(constant_id = 1) const uint LOCAL_Y = 4;
layout(constant_id = 3) const bool HALF_SCALES = false;

#include "float_numbers.glslh"
layout(set = 0, binding = 0) readonly buffer X { StoredFour x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Groups { uint w_groups[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"
#include "grouped_weight.glslh"
#include "grouped_pairs.glslh"

#define CHUNK (4 * VECTORS)  // vec4 of x
#define part gl_LocalInvocationID.x
const uint SLICE = 128u;  // chunks
shared vec4 x_tile[SLICE * (CHUNK + 1)];  // with padding: neighbours are in different banks
shared float parts[LOCAL_Y * COLUMNS * (LOCAL_X + 1)];

uint w_at[COLUMNS], group_at[COLUMNS], per_group;  // offsets of each column; log2(chunks in a group)
uvec4 next_words[COLUMNS];
uvec2 next_groups[COLUMNS];  // not decoded, which would wait for the loads

void load(uint chunk) {
  [[unroll]] for (uint c = 0u; c < COLUMNS; c++) next_words[c] = w[w_at[c] + chunk];
  [[unroll]] for (uint c = 0u; c < COLUMNS; c++)
    next_groups[c] = group_words(group_at[c] + (chunk >> per_group));
}

// Load the slice of a row of x that begins with chunk `first`. There is no branch: loads in a branch wait for
// each other.
void bring(uint row, uint first) {
  uint from = first * CHUNK, all = p.k / 4u;
  barrier();  // the previous slice has been read
  [[unroll]] for (uint i = 0u; i < SLICE * CHUNK; i += LOCAL_X * LOCAL_Y) {
    uint at = gl_LocalInvocationIndex + i;
    x_tile[at + at / CHUNK] = floats_of(x[row * all + min(from + at, all - 1u)]);
  }
  barrier();
}

// Add the products of a chunk of x at `at`.
void multiply_chunk(uint at, uvec4 words[COLUMNS], vec2 both[COLUMNS], inout float sums[COLUMNS]) {
  float dots[COLUMNS];
  [[unroll]] for (uint c = 0u; c < COLUMNS; c++) dots[c] = 0.0;
  [[unroll]] for (uint i = 0u; i < 4u; i++) {
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
      vec4 weights[VECTORS];
      paired_weights(words[c][i], low_of(both[c].y), high_of(both[c].y), weights);
      [[unroll]] for (uint v = 0u; v < VECTORS; v++)
        [[unroll]] for (uint k = 0u; k < 4u; k++) dots[c] += x_tile[at + i * VECTORS + v][k] * weights[v][k];
    }
  }
  [[unroll]] for (uint c = 0u; c < COLUMNS; c++) sums[c] += dots[c] * both[c].x;
}

void main() {
  uint width = LOCAL_Y * COLUMNS, tiles_n = ceil_div(p.n, width), tile = workgroup_index();
  uint row = tile / tiles_n, n = tile % tiles_n * width, block = gl_LocalInvocationID.y * COLUMNS;
  uint chunks = p.k * BITS / 128u, groups = p.k / p.group;
  per_group = findMSB(p.group * BITS / 128u);
  [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
    uint column = min(n + block + c, p.n - 1u);
    w_at[c] = column * chunks;
    group_at[c] = column * groups;
  }
  float sums[COLUMNS] = {};
  load(min(part, chunks - 1u));
  for (uint slice = 0u; slice < chunks; slice += SLICE) {
    bring(row, slice);
    uint end = min(slice + SLICE, chunks);
    [[dont_unroll]] for (uint first = slice; first < end; first += LOCAL_X) {
      uvec4 words[COLUMNS] = next_words;
      vec2 both[COLUMNS];
      [[unroll]] for (uint c = 0u; c < COLUMNS; c++) both[c] = scale_and_zero(next_groups[c]);
      load(min(first + LOCAL_X + part, chunks - 1u));
      if (first + part < chunks) multiply_chunk((first - slice + part) * (CHUNK + 1), words, both, sums);
    }
  }
  [[unroll]] for (uint c = 0u; c < COLUMNS; c++) parts[(block + c) * (LOCAL_X + 1u) + part] = sums[c];
  barrier();
  uint column = gl_LocalInvocationIndex;
  if (column < width && n + column < p.n) {
    vec4 four = vec4(0.0);
    for (uint i = 0u; i < LOCAL_X; i += 4u)
      [[unroll]] for (uint j = 0u; j < 4u; j++) four[j] += parts[column * (LOCAL_X + 1u) + i + j];
    float sum = (four.x + four.y) + (four.z + four.w);
    store_number(y, row * p.n + n + column, bounded(sum + bias_of(n + column, p.n * groups)));
  }
}
