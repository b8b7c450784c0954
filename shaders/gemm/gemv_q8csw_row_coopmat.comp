// Y[N] = (X[K] W[N,K]^T) * scale[n] + bias[n] for a single row on float16 matrix units with float32 sums:
// gemv_words_coopmat.comp for few outputs, all of whose weights are requested at once. Each subgroup
// copies its x to shared memory. There is no loop, because entering a loop waits for all outstanding loads.
//
// Memory    x: k, whole chunks, of float16 in uvec4; w, and the parameters as vec4, as
//           straight_pairs.glslh; y: float16.
// Threads   a workgroup of LOCAL_X invocations computes MM outputs, each subgroup CHUNKS chunks of k. The
//           subgroups' sums are added in the same order every time.
// Needs     matrices of 16 outputs x 16 k and 8 rows, in which an invocation holds elements in pairs along k;
//           LOCAL_X is whole subgroups.
//
//     k -->     | subgroup 0 | subgroup 1 | subgroup 2 | ...   w: a matrix of MM outputs x 16 k after the
//   MM outputs  |            |            |            |       other, into one matrix of sums a subgroup;
//               +------------+------------+------------+       x: a whole matrix; only its first row
//   x, one row  |            |            |            |       counts
//                 sums: shared memory, added from subgroup 0 on --> y, MM outputs
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
layout(set = 0, binding = 2) readonly buffer Numbers { vec4 numbers[]; };
layout(set = 0, binding = 3) writeonly buffer Y { uvec2 y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float16.glslh"
#include "activation.glslh"
#define BN MM
#include "coopmat_half.glslh"

// In a chunk of weights, an output has two uvec4 for each BLOCK k. Words 0 to 3 of a uvec4 belong to four
// matrices of pairs; a column of these matrices corresponds to a block and one of its uvec4, and to a run of
// x.
#define BLOCK 32u
#define CHUNK 128u
#define LINES (CHUNK / BLOCK * 2u * MM)  // uvec4 of a chunk
#define RUNS (CHUNK / RUN)
#define BLOCKS (MM / 4u)  // blocks of four outputs
#define OWN_X ((CHUNKS * RUNS + 31u) / 32u)

#define POINTS_AT (CHUNKS * RUNS)

const uint SUBGROUPS = LOCAL_X / SUBGROUP, SUM_ROW = BLOCKS + 1u;
// uvec4 of shared memory for a subgroup: places, x and zero points, later sums.
const uint PIECE = POINTS_AT > 38u ? POINTS_AT + 2u : 40u;
shared uvec4 tile[SUBGROUPS * PIECE];
#define mine (gl_SubgroupID * PIECE)
#define lane own_lane
#define me gl_LocalInvocationIndex

uvec4 next_x[OWN_X], next_w[CHUNKS][MOST_WORDS_W];
MatrixW zeros, low, high;
MatrixX lower, upper;
uint w_place[MOST_WORDS_W], x_place[MOST_WORDS_X];

// Find the words of this invocation's elements in a chunk, by loading a matrix whose elements are word
// numbers. `place_run` is the run of x for the lower bytes; the run for the upper bytes is two runs after it.
#define place_run(place) ((place) / (2u * MM) * (BLOCK / RUN) + (place) % 2u)
void find_places() {
  for (uint i = lane; i < 2u * MM; i += SUBGROUP)
    tile[mine + i] = i % 2u * 4u * MM + i / 2u * 2u + uvec4(0u, 1u, 2u * MM, 2u * MM + 1u);
  subgroupBarrier();
  coopMatLoad(low, tile, mine, 2, gl_CooperativeMatrixLayoutRowMajor);
  coopMatLoad(lower, tile, mine, 2, gl_CooperativeMatrixLayoutColumnMajor);
  [[unroll]] for (uint q = 0u; q < WORDS_W; q++) w_place[q] = word_of_matrix(low, q);
  [[unroll]] for (uint q = 0u; q < WORDS_X; q++) x_place[q] = place_run(word_of_matrix(lower, q));
  subgroupBarrier();
}

void multiply(uint t, uint biased) {
  [[unroll]] for (uint c = 0u; c < 4u; c++) {
    [[unroll]] for (uint q = 0u; q < WORDS_X; q++) {
      set_word(lower, q, tile[mine + t * RUNS + x_place[q]][c]);
      set_word(upper, q, tile[mine + t * RUNS + x_place[q] + 2u][c]);
    }
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++) {
      set_word(low, q, pair_word(next_w[t][q][c], 0u, biased));
      set_word(high, q, pair_word(next_w[t][q][c], 1u, biased));
    }
    subtract_matrix(low, zeros);
    subtract_matrix(high, zeros);
    acc[0][0] = coopMatMulAdd(low, lower, acc[0][0]);
    acc[0][0] = coopMatMulAdd(high, upper, acc[0][0]);
  }
}

void main() {
  uint chunks = p.k / CHUNK, first = gl_SubgroupID * CHUNKS, n4 = workgroup_index() * BLOCKS;
  uint numbers_at = 3u * min(n4 + lane % BLOCKS, p.n4 - 1u);
  find_places();
  [[unroll]] for (uint i = 0u; i < OWN_X; i++)
    next_x[i] = x[min(first * RUNS + i * SUBGROUP + lane, chunks * RUNS - 1u)];
  vec4 scale = numbers[numbers_at], bias = numbers[numbers_at + 1u], zero;
  if (!SIGNED) zero = numbers[numbers_at + 2u];
  [[unroll]] for (uint t = 0u; t < CHUNKS; t++) {
    uint at = (n4 / BLOCKS * chunks + min(first + t, chunks - 1u)) * LINES;
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++) next_w[t][q] = w[at + w_place[q]];
  }
  [[unroll]] for (uint i = 0u; i < OWN_X; i++) {
    uint run = i * SUBGROUP + lane;
    if (run < POINTS_AT) tile[mine + run] = first * RUNS + run < chunks * RUNS ? next_x[i] : uvec4(0u);
  }
  if (!SIGNED && lane < BLOCKS) {
    uint at = mine + POINTS_AT + lane / 2u;
    tile[at][lane % 2u * 2u] = half_zero(zero.x) & 0xffffu | half_zero(zero.y) << 16;
    tile[at][lane % 2u * 2u + 1u] = half_zero(zero.z) & 0xffffu | half_zero(zero.w) << 16;
  }
  subgroupBarrier();
  if (!SIGNED) load_points(zeros, (mine + POINTS_AT) * 8u);
  clear_acc();
  uint biased = 0x64006400u + (p.m >> 31);  // keep the constant in a register
  [[unroll]] for (uint t = 0u; t < CHUNKS; t++) multiply(t, biased);
  subgroupBarrier();
  coopMatStore(acc[0][0], tile, mine, SUM_ROW, gl_CooperativeMatrixLayoutColumnMajor);
  barrier();
  if (me >= BLOCKS || n4 + me >= p.n4) return;
  vec4 sums = vec4(0.0);
  [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) sums += uintBitsToFloat(tile[s * PIECE + me]);
  y[n4 + me] = float16_pair(bounded(sums * scale + bias));
}
