// Y[M,N] = X[M,K] W[N,K]^T + bias[N] for few rows: float activations, weights of 4 or 8 bits in groups along
// K, dequantized in the shader. Reading the weights limits the speed, so many threads share the sum over k.
//   y[m,n] = sum over groups g of scale[n,g] * sum_k x[m,k] (q[n,k] - zero[n,g])  + bias[n]
//
// Memory    x: rows of whole vec4, float32 or float16 (float_numbers.glslh), y alike; w: rows of codes in
//           MatMulNBits's order; a uvec4 is a chunk of 32 (8 bits: 16) codes, of GROUPS groups; w_groups:
//           common/grouped_weight.glslh.
// Threads   a workgroup is LOCAL_X blocks of four columns x LOCAL_Y parts of k, and computes ROWS rows.
//           Chunks of k are assigned to the parts round-robin, so that neighbouring invocations read
//           neighbouring memory.
// Needs     16 bytes of shared memory for each invocation and row.
//
//     k -->      0   1   2  ..  LOCAL_Y-1   0   1  ..     chunks of k: which part sums them
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
layout(constant_id = 0) const uint LOCAL_X = 1;
layout(constant_id = 1) const uint LOCAL_Y = 64;
layout(constant_id = 3) const bool HALF_SCALES = false;
layout(constant_id = 4) const bool IN_TURN = false;  // one word of a chunk at a time: fewer registers
layout(constant_id = 5) const uint GROUPS = 1;  // groups in a chunk: 2 if a group is half a chunk

#include "float_numbers.glslh"
layout(set = 0, binding = 0) readonly buffer X { StoredFour x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Groups { uint w_groups[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };

#define PART vec4
#define MOST_ROWS 4
#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"
#include "grouped_weight.glslh"
#include "split_sum.glslh"

// Add the products of a word of each of four columns to `dots` (of each row and column, without the scale).
// `word`: the index of the words in their rows of w.
void multiply_word(uint m, uint word, uvec4 words, vec4 zeros, inout vec4 dots[MOST_ROWS]) {
  vec4 weights[4][VECTORS];
  [[unroll]] for (uint c = 0u; c < 4u; c++) centred_weights(words[c], zeros[c], weights[c]);
  [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++) {
    uint at = min(m + r, p.m - 1u) * (p.k / 4u) + word * VECTORS;
    [[unroll]] for (uint v = 0u; v < VECTORS; v++) {
      vec4 values = vec4(0.0);
      if (r < ROWS) values = floats_of(x[at + v]);
      [[unroll]] for (uint c = 0u; c < 4u; c++)
        if (r < ROWS) dots[r][c] += dot(values, weights[c][v]);
    }
  }
}

void multiply_words(
    uint m, uint chunk, const uint g, uint rows_of_w[4], vec4 zeros, inout vec4 dots[MOST_ROWS]) {
  const uint WORDS = 4u / GROUPS;
  uint chunks = p.k * BITS / 128u;
  if (IN_TURN) {
    [[dont_unroll]] for (uint i = g * WORDS; i < (g + 1u) * WORDS; i++) {
      uvec4 words;
      [[unroll]] for (uint c = 0u; c < 4u; c++) words[c] = w[rows_of_w[c] * chunks + chunk][i];
      multiply_word(m, 4u * chunk + i, words, zeros, dots);
    }
  } else {
    uvec4 words[4];
    [[unroll]] for (uint c = 0u; c < 4u; c++) words[c] = w[rows_of_w[c] * chunks + chunk];
    [[unroll]] for (uint i = g * WORDS; i < (g + 1u) * WORDS; i++) {
      uvec4 four = uvec4(words[0][i], words[1][i], words[2][i], words[3][i]);
      multiply_word(m, 4u * chunk + i, four, zeros, dots);
    }
  }
}

// Add the products of group `g` of a chunk, which is group `group` of the column.
void add_group(
    uint m, uint chunk, uint g, uint rows_of_w[4], uint groups, uint group, inout vec4 sums[MOST_ROWS]) {
  vec4 scales, zeros;
  [[unroll]] for (uint c = 0u; c < 4u; c++) {
    vec2 both = scale_and_zero(rows_of_w[c] * groups + group);
    scales[c] = both.x;
    zeros[c] = both.y;
  }
  vec4 dots[MOST_ROWS];
  [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++) dots[r] = vec4(0.0);
  multiply_words(m, chunk, g, rows_of_w, zeros, dots);
  [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++) sums[r] += dots[r] * scales;
}

void main() {
  uint tiles_n = ceil_div(p.n, 4u * LOCAL_X), tile = workgroup_index();
  uint m = tile / tiles_n * ROWS, n = 4u * (tile % tiles_n * LOCAL_X + gl_LocalInvocationID.x);
  uint chunks = p.k * BITS / 128u, groups = p.k / p.group, chunks_per_group = p.group * GROUPS * BITS / 128u;
  uint rows_of_w[4];
  [[unroll]] for (uint c = 0u; c < 4u; c++) rows_of_w[c] = min(n + c, p.n - 1u);

  vec4 sums[MOST_ROWS] = {};
  for (uint chunk = gl_LocalInvocationID.y; chunk < chunks; chunk += LOCAL_Y) {
    uint group = chunk / chunks_per_group * GROUPS;
    add_group(m, chunk, 0u, rows_of_w, groups, group, sums);
    if (GROUPS == 2u) add_group(m, chunk, 1u, rows_of_w, groups, group + 1u, sums);
  }
  sum_parts(sums);
  if (gl_LocalInvocationID.y == 0u) {
    [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++) {
      [[unroll]] for (uint c = 0u; c < 4u; c++) {
        if (r < ROWS && m + r < p.m && n + c < p.n)
          store_number(y, (m + r) * p.n + n + c, bounded(sums[r][c] + bias_of(n + c, p.n * groups)));
      }
    }
  }
}
