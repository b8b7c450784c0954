// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] for few rows on float16 matrix units with float32 sums. As
// in gemv_q8csw_coopmat.comp, each subgroup has a part of k, but shared memory holds only the sums.
// Invocations load weights and x of a whole chunk (CHUNK k) at once, 16 bytes at a time, and assemble the
// matrices in registers.
//
// Memory    x: rows of k, whole chunks, of float16 in uvec4; w, and the parameters as vec4, as
//           gemm_q8csw_straight_coopmat.comp; y: rows of float16.
// Threads   a workgroup of LOCAL_X invocations computes BM rows of BN outputs. The subgroups' sums are added
//           in the same order every time.
// Needs     matrices of 16 outputs x 16 k and at most BM rows, in which an invocation holds elements in pairs
//           along k; LOCAL_X is whole subgroups.
//
//     k -->     | subgroup 0 | subgroup 1 | subgroup 2 | ...   w, and x beneath it: a subgroup has matrices
//   BN outputs  |            |            |            |       of MN rows x MM outputs, FRAGMENTS_M x
//               +------------+------------+------------+       FRAGMENTS_N of them, with the sums of its k
//   BM rows     |            |            |            |
//                 sums: shared memory, added from subgroup 0 on --> y, BM rows x BN outputs
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

#include "lane.glslh"
#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Numbers { float numbers[]; };
layout(set = 0, binding = 3) writeonly buffer Y { uvec2 y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float16.glslh"
#include "activation.glslh"
#include "coopmat_half.glslh"

// A block of weights in memory is BLOCK k of MM outputs, two uvec4 for each output. In a chunk of four
// blocks, words 0 to 3 of a uvec4 belong to four matrices of pairs; a column of these matrices corresponds to
// a block and one of its uvec4, and to a run of x, whose words belong to the same four matrices. `place` (of
// row r and of columns c and c + 1) is the offset of their words in a chunk.
#define BLOCK 32u
#define CHUNK 128u
#define LINES (CHUNK / BLOCK * 2u * MM)  // uvec4 of a chunk
#define place_row(place) ((place) / 2u % 16u)
#define place_run(place) ((place) / 32u * (BLOCK / RUN) + (place) % 2u)  // two after it: of upper bytes

const uint SUBGROUPS = LOCAL_X / SUBGROUP, PARAMETERS = 3u * BN;
const uint SUM_ROW = BN / 4u + 1u, SUMS = BM * SUM_ROW;  // padding keeps neighbours in different banks
const uint ZEROS = 2u * (BN > 16 ? BN : 16);
const uint PIECE = SUMS > ZEROS ? SUMS : ZEROS;  // uvec4 for a subgroup: places and zero points, later sums
shared uvec4 tile[SUBGROUPS * PIECE];
shared vec4 parameters[PARAMETERS / 4u];
#define mine (gl_SubgroupID * PIECE)
#define lane own_lane
#define me gl_LocalInvocationIndex

uvec4 next_x[FRAGMENTS_M][2][MOST_WORDS_X], next_w[FRAGMENTS_N][MOST_WORDS_W];
MatrixW zeros[FRAGMENTS_N], low, high;
MatrixX lower, upper;
uint n, chunks, first_chunk, biased;
uint w_place[MOST_WORDS_W], w_first[FRAGMENTS_N], x_place[FRAGMENTS_M][MOST_WORDS_X];

void load(uint t) {
  uint chunk = min(first_chunk + t, chunks - 1u);
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    [[unroll]] for (uint q = 0u; q < WORDS_X; q++)
      [[unroll]] for (uint h = 0u; h < 2u; h++)
        next_x[j][h][q] = x[x_place[j][q] + chunk * (CHUNK / RUN) + 2u * h];
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++) next_w[i][q] = w[w_first[i] + chunk * LINES + w_place[q]];
}

// Multiply a chunk. x beyond k is made zero here, because masking at the load would wait for the load.
void multiply(uint t) {
  bvec4 inside = bvec4(first_chunk + t < chunks);
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    [[unroll]] for (uint q = 0u; q < WORDS_X; q++)
      [[unroll]] for (uint h = 0u; h < 2u; h++)
        next_x[j][h][q] = mix(uvec4(0u), next_x[j][h][q], inside);
  [[unroll]] for (uint c = 0u; c < 4u; c++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      [[unroll]] for (uint q = 0u; q < WORDS_W; q++) {
        set_word(low, q, pair_word(next_w[i][q][c], 0u, biased));
        set_word(high, q, pair_word(next_w[i][q][c], 1u, biased));
      }
      subtract_matrix(low, zeros[i]);
      subtract_matrix(high, zeros[i]);
      [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++) {
        [[unroll]] for (uint q = 0u; q < WORDS_X; q++) {
          set_word(lower, q, next_x[j][0][q][c]);
          set_word(upper, q, next_x[j][1][q][c]);
        }
        acc[i][j] = coopMatMulAdd(low, lower, acc[i][j]);
        acc[i][j] = coopMatMulAdd(high, upper, acc[i][j]);
      }
    }
}

// Find the words of this invocation's elements, by loading a matrix whose elements are word numbers.
void find_places() {
  for (uint i = lane; i < 32u; i += SUBGROUP)
    tile[mine + i] = i % 2u * 64u + i / 2u * 2u + uvec4(0u, 1u, 32u, 33u);
  subgroupBarrier();
  coopMatLoad(low, tile, mine, 2, gl_CooperativeMatrixLayoutRowMajor);
  coopMatLoad(lower, tile, mine, 2, gl_CooperativeMatrixLayoutColumnMajor);
  [[unroll]] for (uint q = 0u; q < WORDS_W; q++) w_place[q] = word_of_matrix(low, q);
  [[unroll]] for (uint q = 0u; q < WORDS_X; q++) {
    uint place = word_of_matrix(lower, q);
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
      x_place[j][q] = min(j * MN + place_row(place), p.m - 1u) * (p.k / RUN) + place_run(place);
  }
}

float number(uint c, uint what) { return numbers[c / 4u * 12u + 4u * what + c % 4u]; }

void main() {
  const uint OWN = (BN + SUBGROUP - 1u) / SUBGROUP;
  chunks = p.k / CHUNK;
  uint steps = ceil_div(chunks, SUBGROUPS), last = 4u * p.n4 - 1u;
  n = workgroup_index() * BN;
  first_chunk = gl_SubgroupID * steps;
  biased = 0x64006400u + (p.m >> 31);  // a constant in a register, not in two instructions
  float zero[OWN];
  if (!SIGNED)
    [[unroll]] for (uint i = 0u; i < OWN; i++) zero[i] = number(min(n + lane + i * SUBGROUP, last), 2u);
  float parameter = numbers[min(3u * n + me % PARAMETERS, 3u * last + 2u)];
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) w_first[i] = min(n / MM + i, last / MM) * chunks * LINES;
  find_places();
  load(0u);
  clear_acc();
  if (!SIGNED) {
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < OWN; i++) {
      uint row = lane + i * SUBGROUP;
      if (BN % SUBGROUP == 0u || row < BN)
        tile[mine + 2u * row] = tile[mine + 2u * row + 1u] = uvec4(half_zero(zero[i]));
    }
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
      coopMatLoad(zeros[i], tile, mine + i * MM * 2u, 2, gl_CooperativeMatrixLayoutRowMajor);
  }
  [[dont_unroll]] for (uint t = 1u; t < steps; t++) {
    multiply(t - 1u);
    load(t);
  }
  multiply(steps - 1u);
  subgroupBarrier();
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
      coopMatStore(acc[i][j], tile, mine + j * MN * SUM_ROW + i * (MM / 4), SUM_ROW,
          gl_CooperativeMatrixLayoutColumnMajor);
  parameters[me % PARAMETERS / 4u][me % 4u] = parameter;  // by all: in a branch, the load would be delayed
  barrier();
  for (uint e = me; e < BM * BN / 4u; e += LOCAL_X) {
    uint row = e / (BN / 4u), block = e % (BN / 4u);
    vec4 sums = vec4(0.0);
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++)
      sums += uintBitsToFloat(tile[s * PIECE + row * SUM_ROW + block]);
    vec4 values = bounded(sums * parameters[3u * block] + parameters[3u * block + 1u]);
    if (row < p.m && n / 4u + block < p.n4)
      y[row * (p.channels / 4u) + n / 4u + block] = uvec2(float16_word(values.xy), float16_word(values.zw));
  }
}
