// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] for few rows of float32 on bfloat16 matrix units:
// gemv_q8csw_words_coopmat.comp with x split exactly, in registers, into three bfloat16 parts. Matrices have
// 16 rows; for up to 8 rows of x, the largest parts are 8 rows of a matrix and the second parts the others.
//
// Memory    x: rows of k, whole chunks, of float32 in uvec4; w, and the parameters as vec4, as
//           gemm_q8csw_straight_coopmat.comp; y: rows of float32.
// Threads   a workgroup of LOCAL_X invocations computes BM rows of BN outputs; neighbouring workgroups share
//           the outputs (ROW_TILES tiles of rows). The subgroups' sums are always added in the same order.
// Needs     matrices of 16 outputs x 16 k x 16 rows, in which an invocation holds elements in pairs along k;
//           for BM 8, as many elements of row r as of row r + 8. LOCAL_X is whole subgroups.
//     k -->     | subgroup 0 | subgroup 1 | ..   each: FRAGMENTS_N matrices of 16 rows x MM outputs, with the
//   BN outputs  |            |            |      sums of its part of k, by all parts of x
//     sums: shared memory, added from subgroup 0 on --> y, BM rows x BN outputs
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_bfloat16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_control_flow_attributes : require

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Numbers { float numbers[]; };
layout(set = 0, binding = 3) writeonly buffer Y { vec4 y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"
#include "coopmat_half_types.glslh"

// Weights have the word offsets of gemv_q8csw_words_coopmat.comp. In x, a word of pairs has 8 bytes.
#define BLOCK 32u
#define CHUNK 128u
#define LINES (CHUNK / BLOCK * 2u * MM)  // uvec4 of a chunk
#define RUN 4u                           // numbers of a uvec4 of x
#define place_row(place) ((place) / 2u % 16u)
#define place_run(place) ((place) / 32u * (BLOCK / RUN) + (place) % 2u * 2u)  // upper bytes: four further on

const uint SUBGROUPS = LOCAL_X / SUBGROUP, PARAMETERS = 3u * BN, FRAGMENTS_N = BN / MM;
const uint SUM_ROW = BN / 4u + 1u, SUMS = 16u * SUM_ROW;  // padding keeps neighbours in different banks
const uint PIECE = max(SUMS, 32u);  // uvec4 of a subgroup: element numbers, then zero points, then sums
shared uvec4 tile[SUBGROUPS * PIECE];
shared vec4 parameters[PARAMETERS / 4u];
#define mine (gl_SubgroupID * PIECE)
#define lane (gl_LocalInvocationIndex % SUBGROUP)  // lane.glslh
#define me gl_LocalInvocationIndex

#if BM == 8  // `first` also holds the second parts
#define WORDS WORDS_BOTH
#else
#define WORDS WORDS_X
#endif
uvec4 next_x[WORDS][4], next_w[FRAGMENTS_N][WORDS_W];
MatrixAcc acc[FRAGMENTS_N];
MatrixW weights[FRAGMENTS_N];
MatrixX first, second, third;  // parts of x, the largest first
uint n, first_row, chunks, first_chunk, biased;
uint w_place[WORDS_W], w_first[FRAGMENTS_N], x_place[WORDS], zeros[FRAGMENTS_N][WORDS_W];

#include "bfloat16_pairs.glslh"

// Convert two of a word's weights, the lower or the upper bytes, less the zero point (half_zero).
uint pair_of(uint word, uint upper, uint zero) {
  f16vec2 two = unpackFloat2x16(pair_word(word, upper, biased));
  if (!SIGNED) two = two - unpackFloat2x16(zero);
  return brains_of(two);
}

void load(uint t) {
  uint chunk = min(first_chunk + t, chunks - 1u);
  [[unroll]] for (uint q = 0u; q < WORDS; q++)
    [[unroll]] for (uint h = 0u; h < 4u; h++)
      next_x[q][h] = x[x_place[q] + chunk * (CHUNK / RUN) + h / 2u * 4u + h % 2u];
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++) next_w[i][q] = w[w_first[i] + chunk * LINES + w_place[q]];
}

void multiply(uint t) {
  if (first_chunk + t >= chunks) return;
  [[unroll]] for (uint c = 0u; c < 4u; c++)
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
      [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
        [[unroll]] for (uint q = 0u; q < WORDS_W; q++) {
          uint word = pair_of(next_w[i][q][c], h, zeros[i][q]);
          set_word(weights[i], q, word);
        }
      [[unroll]] for (uint q = 0u; q < WORDS; q++) {
        uvec4 four = next_x[q][2u * h + c / 2u];
        vec2 two = uintBitsToFloat(c % 2u == 0u ? four.xy : four.zw);
        uint one = cut(two), other = cut(two), rest = upper_parts(two.x, two.y);
#if BM == 8
        set_both(first, q, one, other);
        set_both(third, q, rest, 0u);
#else
        set_word(first, q, one);
        set_word(second, q, other);
        set_word(third, q, rest);
#endif
      }
      [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
        acc[i] = coopMatMulAdd(weights[i], third, acc[i]);
#if BM > 8
        acc[i] = coopMatMulAdd(weights[i], second, acc[i]);
#endif
        acc[i] = coopMatMulAdd(weights[i], first, acc[i]);
      }
    }
}

// Find the words of this invocation's elements, by loading a matrix whose elements are word numbers.
void find_places() {
  for (uint i = lane; i < 32u; i += SUBGROUP)
    tile[mine + i] = i % 2u * 64u + i / 2u * 2u + uvec4(0u, 1u, 32u, 33u);
  subgroupBarrier();
  coopMatLoad(weights[0], tile, mine, 2, gl_CooperativeMatrixLayoutRowMajor);
  coopMatLoad(first, tile, mine, 2, gl_CooperativeMatrixLayoutColumnMajor);
  [[unroll]] for (uint q = 0u; q < WORDS_W; q++) w_place[q] = word_of_matrix(weights[0], q);
  [[unroll]] for (uint q = 0u; q < WORDS; q++) {
    uint place = word_of_matrix(first, q);
    x_place[q] = min(first_row + place_row(place) % uint(BM), p.m - 1u) * (p.k / RUN) + place_run(place);
  }
}

float number(uint c, uint what) { return numbers[c / 4u * 12u + 4u * what + c % 4u]; }
uint half_zero(float zero) { return packHalf2x16(vec2(zero - 8387584.0)); }  // - 2^23 + 1024

// Recompute sums that are NaN in float32: only the largest part of an infinite x is infinite.
vec4 sums_again(uint row, uint c4) {
  vec4 sums = vec4(0.0);
  uvec4 points;
  uint c = 4u * c4;
  if (!SIGNED) for (uint i = 0u; i < 4u; i++) points[i] = half_zero(number(c + i, 2u));
  for (uint k = 0u; k < p.k; k++) {
    uint at = (c / MM * chunks + k / CHUNK) * LINES + (k % CHUNK / BLOCK * MM + c % MM) * 2u + k % 16u / 8u;
    float value = uintBitsToFloat(x[row * (p.k / RUN) + k / RUN][k % RUN]);
    for (uint i = 0u; i < 4u; i++) {
      uint two = pair_of(w[at + 2u * i][k % 8u / 2u], k % BLOCK / 16u, points[i]);
      sums[i] += value * uintBitsToFloat(k % 2u == 0u ? two << 16 : two & 0xffff0000u);
    }
  }
  return sums;
}

void main() {
  const uint OWN = (BN + SUBGROUP - 1u) / SUBGROUP;
  chunks = p.k / CHUNK;
  uint steps = ceil_div(chunks, SUBGROUPS), last = 4u * p.n4 - 1u;
  n = workgroup_index() / ROW_TILES * BN;
  first_row = workgroup_index() % ROW_TILES * BM;
  first_chunk = gl_SubgroupID * steps;
  biased = 0x64006400u + (p.m >> 31);  // keep the constant in a register
  float zero[OWN];
  if (!SIGNED)
    [[unroll]] for (uint i = 0u; i < OWN; i++) zero[i] = number(min(n + lane + i * SUBGROUP, last), 2u);
  float parameter = numbers[min(3u * n + me % PARAMETERS, 3u * last + 2u)];
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) w_first[i] = min(n / MM + i, last / MM) * chunks * LINES;
  find_places();
  load(0u);
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) acc[i] = matrix_of_zeros();
  if (!SIGNED) {
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < OWN; i++)
      if (BN % SUBGROUP == 0u || lane + i * SUBGROUP < BN)
        tile[mine + lane + i * SUBGROUP].x = half_zero(zero[i]);
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
      [[unroll]] for (uint q = 0u; q < WORDS_W; q++)
        zeros[i][q] = tile[mine + i * MM + place_row(w_place[q])].x;
  }
  [[dont_unroll]] for (uint t = 1u; t < steps; t++) {
    multiply(t - 1u);
    load(t);
  }
  multiply(steps - 1u);
  subgroupBarrier();
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    coopMatStore(acc[i], tile, mine + i * (MM / 4), SUM_ROW, gl_CooperativeMatrixLayoutColumnMajor);
  parameters[me % PARAMETERS / 4u][me % 4u] = parameter;  // no branch, which would delay the load
  barrier();
  for (uint e = me; e < BM * BN / 4u; e += LOCAL_X) {
    uint own = e / (BN / 4u), row = first_row + own, block = e % (BN / 4u), c4 = n / 4u + block;
    vec4 sums = vec4(0.0);
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) {
      uint at = s * PIECE + own * SUM_ROW + block;
      sums += BM > 8 ? uintBitsToFloat(tile[at])
                     : uintBitsToFloat(tile[at]) + uintBitsToFloat(tile[at + 8u * SUM_ROW]);
    }
    if (row < p.m && c4 < p.n4) {
      if (any(greaterThan(floatBitsToUint(sums) & 0x7fffffffu, uvec4(0x7f800000u))))
        sums = sums_again(row, c4);
      y[row * (p.channels / 4u) + c4] = bounded(sums * parameters[3u * block] + parameters[3u * block + 1u]);
    }
  }
}
