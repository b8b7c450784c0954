// Y[b,M,N] = A[b,M,K] B[b,K,N] + bias in float32, with the same bits on every device: each product and each
// sum is rounded. k goes from first_k to end_k in SLICES parts, whose sums are added in order. A long k takes
// several dispatches, each of which continues the sums in y (CONTINUE).
//
// Memory    a: rows [matrix][m][k], b: rows [matrix][k][b_row], float32 words, or (HALF_A, HALF_B) float16,
//           two in a word; WHOLE_B: b_row is a multiple of 4, at least n rounded up to one. bias: for each
//           column, or (BIAS 2) for each row. y: [matrix][m][n] float32.
// Threads   a workgroup is LOCAL_X x LOCAL_Y invocations for each of SLICES parts of k; each computes TILE_M
//           rows x TILE_N4 blocks of four columns, LOCAL_Y (LOCAL_X) apart.
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

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 3) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
layout(constant_id = 3) const uint SLICES = 1;
layout(constant_id = 4) const uint TILE_M = 4;
layout(constant_id = 5) const uint TILE_N4 = 1;
layout(constant_id = 6) const uint BIAS = 0;
layout(constant_id = 7) const bool HALF_A = false;
layout(constant_id = 8) const bool HALF_B = false;
layout(constant_id = 9) const bool WHOLE_B = false;
layout(constant_id = 10) const bool CONTINUE = false;

layout(set = 0, binding = 0) readonly buffer A { uint a[]; };
layout(set = 0, binding = 1) readonly buffer B { uint b[]; };
layout(set = 0, binding = 2) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 3) buffer Y { float y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"

shared vec4 parts[SLICES * LOCAL_Y * LOCAL_X];

// Convert float16 to float32 with integers: a device may flush subnormal halves to zero.
float float_of_half(uint bits) {
  uint sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
  if (size >= 0x7c00u) return uintBitsToFloat(sign | 0x7f800000u | (size & 0x3ffu) << 13);
  if (size >= 0x400u) return uintBitsToFloat(sign | (size << 13) + 0x38000000u);
  float small = float(size) * 5.9604644775390625e-8;  // 2^-24
  return sign == 0u ? small : -small;
}

float half_at(uint word, uint at) { return float_of_half(word >> 16u * (at & 1u) & 0xffffu); }

float a_at(uint at) { return HALF_A ? half_at(a[at >> 1u], at) : uintBitsToFloat(a[at]); }
float b_at(uint at) { return HALF_B ? half_at(b[at >> 1u], at) : uintBitsToFloat(b[at]); }

// Load four columns, from 4 n4 on, of the row of b that begins at `row`.
vec4 b_block(uint row, uint n4) {
  uint n = 4u * n4, last = p.n - 1u;
  if (WHOLE_B) return vec4(b_at(row + n), b_at(row + n + 1u), b_at(row + n + 2u), b_at(row + n + 3u));
  return vec4(b_at(row + n), b_at(row + min(n + 1u, last)), b_at(row + min(n + 2u, last)),
      b_at(row + min(n + 3u, last)));
}

// Return the index of the first of four neighbouring results.
uint place(uint matrix, uint m, uint n4) { return (matrix * p.m + m) * p.n + 4u * n4; }

vec4 sum_so_far(uint matrix, uint m, uint n4) {
  vec4 sum = vec4(0.0);
  [[unroll]] for (uint c = 0u; c < 4u; c++)
    if (CONTINUE && m < p.m && 4u * n4 + c < p.n) sum[c] = y[place(matrix, m, n4) + c];
  return sum;
}

void store(uint matrix, uint m, uint n4, vec4 sum) {
  uint n = 4u * n4, at = place(matrix, m, n4);
  [[unroll]] for (uint c = 0u; c < 4u; c++)
    if (m < p.m && n + c < p.n) {
      precise float value = sum[c];
      if (BIAS > 0u) value = value + bias[BIAS == 2u ? m : n + c];
      y[at + c] = bounded(value);
    }
}

void main() {
  uint tiles_n = ceil_div(ceil_div(p.n, 4u), LOCAL_X * TILE_N4), tiles_m = ceil_div(p.m, LOCAL_Y * TILE_M);
  uint tile = workgroup_index(), matrix = tile / (tiles_n * tiles_m);
  uint n4 = tile % tiles_n * LOCAL_X * TILE_N4 + gl_LocalInvocationID.x;
  uint m = tile / tiles_n % tiles_m * LOCAL_Y * TILE_M + gl_LocalInvocationID.y;
  uint slice = gl_LocalInvocationID.z, length = ceil_div(p.end_k - p.first_k, SLICES);
  uint last4 = ceil_div(p.n, 4u) - 1u;

  precise vec4 sums[TILE_M][TILE_N4];
  uint rows[TILE_M];
  [[unroll]] for (uint i = 0u; i < TILE_M; i++) {
    rows[i] = matrix * p.a_matrix + min(m + i * LOCAL_Y, p.m - 1u) * p.k;
    [[unroll]] for (uint j = 0u; j < TILE_N4; j++) 
      sums[i][j] = slice == 0u ? sum_so_far(matrix, m + i * LOCAL_Y, n4 + j * LOCAL_X) : vec4(0.0);
  }
  uint first = p.first_k + slice * length, end = min(p.end_k, first + length);
  for (uint k = first; k < end; k++) {
    vec4 columns[TILE_N4];
    [[unroll]] for (uint j = 0u; j < TILE_N4; j++)
      columns[j] = b_block(matrix * p.b_matrix + k * p.b_row, min(n4 + j * LOCAL_X, last4));
    [[unroll]] for (uint i = 0u; i < TILE_M; i++) {
      float value = a_at(rows[i] + k);
      [[unroll]] for (uint j = 0u; j < TILE_N4; j++) sums[i][j] = sums[i][j] + value * columns[j];
    }
  }
  uint at = gl_LocalInvocationID.y * LOCAL_X + gl_LocalInvocationID.x;
  [[unroll]] for (uint i = 0u; i < TILE_M; i++)
    [[unroll]] for (uint j = 0u; j < TILE_N4; j++) {
      precise vec4 sum = sums[i][j];
      if (SLICES > 1u) {
        parts[slice * LOCAL_X * LOCAL_Y + at] = sum;
        barrier();
        for (uint s = 1u; slice == 0u && s < SLICES; s++) sum = sum + parts[s * LOCAL_X * LOCAL_Y + at];
        barrier();
      }
      if (slice == 0u) store(matrix, m + i * LOCAL_Y, n4 + j * LOCAL_X, sum);
    }
}
