// Y[N] = X[K] W[N,K]^T + bias[N] for a single row of float16 and weights of 4 bits in groups of whole UNITs
// along K, on float16 matrix units with float32 sums. Like gemv_coopmat.comp, but all codes are
// requested at once. Shared memory holds only x and scales, later the sums: invocations load 16 bytes of
// codes at a time and assemble the matrices in registers. There is no loop, because entering a loop waits for
// all outstanding loads.
//
// Memory    x: k of float16 in uvec4; w, w_groups: common/grouped_matrices.glslh; y: float16.
// Threads   a workgroup computes MM outputs, each subgroup a CHUNK of k. The subgroups' sums are added in the
//           same order every time. Each subgroup requests its codes later than the previous one (LATE): if
//           all requested them at once, all codes would arrive at the end, and nothing would hide the time of
//           the products.
// Needs     matrices of 16 outputs, 16 k and 8 rows, in which an invocation holds elements in pairs, each
//           with the pair four pairs after it. INVOCATIONS: a subgroup of LANES for each chunk.
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
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint INVOCATIONS = 256;
layout(constant_id = 3) const bool HALF_SCALES = false;
layout(constant_id = 17) const uint LATE = 0;  // delay after the previous subgroup, in some 20 cycles

#include "lane.glslh"
#include "float16.glslh"
#include "float_numbers.glslh"
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Groups { uint w_groups[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"
#include "coopmat_half_types.glslh"

// A unit is two blocks of k. An output has two uvec4 in it, which belong to columns of pairs of k: words 0
// and 1 are elements of one matrix, words 2 and 3 of another, in columns four apart; their nth codes belong
// to the nth two matrices. For each word, x has four k.
#define LANES 32u
#define BN MM
#define BK 128
#define STEPS 1
#include "grouped_matrices.glslh"
#define UNIT 128u
#define UNITS 2u  // units of a chunk
#define UNIT_LINES (UNIT / 64u * 32u)  // uvec4 of a unit's codes
#define UNIT_RUNS (UNIT / 8u)          // uvec4 of a unit's x
#define UNIT_ROW (UNIT_RUNS + 2u)      // in shared memory; padding keeps pairs in different banks

const uint SUBGROUPS = INVOCATIONS / LANES, SCALES_AT = UNITS * UNIT_ROW, SUM_ROW = MM / 4u + 1u;
const uint SUMS = MN * SUM_ROW, NEEDED = SCALES_AT + UNITS * MM / 4u;
const uint PIECE = SUMS > NEEDED ? SUMS : NEEDED;  // memory of a subgroup: x and scales, later sums
shared uvec4 tile[SUBGROUPS * PIECE];
#define mine (gl_SubgroupID * PIECE)
#define lane own_lane

uvec4 next_x, next_w[UNITS][MOST_WORDS_W];  // next_w[..][w] is set for even w
MatrixW low, halves, zeros;
MatrixX lower, upper;
MatrixAcc acc, sums[UNITS], scales;
uint w_place[MOST_WORDS_W], x_place[MOST_WORDS_X];

// Find which uvec4 of a unit hold this invocation's elements, by loading a matrix whose elements are their
// own numbers.
void find_places() {
  for (uint i = lane; i < MM * 2u; i += LANES) tile[mine + i] = 4u * i + uvec4(0u, 1u, 2u, 3u);
  subgroupBarrier();
  coopMatLoad(low, tile, mine, 2, gl_CooperativeMatrixLayoutRowMajor);
  coopMatLoad(lower, tile, mine, 2, gl_CooperativeMatrixLayoutColumnMajor);
  [[unroll]] for (uint q = 0u; q < WORDS_W; q++) {
    uint word = word_of_matrix(low, q), column = word % 4u;
    w_place[q] = column / 2u * 32u + word / 8u * 2u + column % 2u;
  }
  [[unroll]] for (uint q = 0u; q < WORDS_X; q++) {
    uint column = word_of_matrix(lower, q) % 4u;
    x_place[q] = column / 2u * (UNIT_ROW / 2u) + column % 2u;
  }
  subgroupBarrier();
}

// Return 0 after `turns` iterations of a delay loop, which no compiler can remove.
uint zero_after(uint turns) {
  uint zero = p.m >> 31;
  [[dont_unroll]] for (uint i = 0u; i < turns; i++) zero = (zero << 1) ^ (zero >> 3);
  return zero;
}

// Multiply a unit. If the last unit does not exist, the codes of the unit before it are read, and x is zero.
void multiply(uint nth) {
  [[unroll]] for (uint u = 0u; u < UNITS; u++) {
    [[unroll]] for (uint q = 0u; q < WORDS_X; q++) {
      uvec4 four = tile[mine + u * UNIT_ROW + nth * 2u + x_place[first_of(q)]];
      set_word(lower, q, four[further(q)]);
      set_word(upper, q, four[2u + further(q)]);
    }
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++) set_word(low, q, next_w[u][first_of(q)][further(q)]);
    halves_of_codes(low, nth, BIASED, zeros, halves)
    sums[u] = coopMatMulAdd(halves, lower, sums[u]);
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++) set_word(low, q, next_w[u][first_of(q)][2u + further(q)]);
    halves_of_codes(low, nth, BIASED, zeros, halves)
    sums[u] = coopMatMulAdd(halves, upper, sums[u]);
  }
}

void main() {
  uint units = p.k / UNIT, across = ceil_div(p.n, MM) * MM, runs = p.k / 8u, n = workgroup_index() * MM;
  find_places();
  uint unit = gl_SubgroupID * UNITS + zero_after(gl_SubgroupID * LATE);
  next_x = x[min(unit * UNIT_RUNS + lane, runs - 1u)];
  uint scale = span_words(unit * UNIT, n, across, lane).x, column = n + gl_LocalInvocationIndex % MM;
  float bias = span_bias(min(column, p.n - 1u), across);
  [[unroll]] for (uint u = 0u; u < UNITS; u++) {
    uint first = (n / MM * units + min(unit + u, units - 1u)) * UNIT_LINES;
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++)
      if (further(q) == 0u) next_w[u][q] = w[first + w_place[q]];
  }
  fill_halves(zeros, float(1024u + ZERO));
  tile[mine + lane + lane / 8u] = unit * UNIT_RUNS + lane < runs ? next_x : uvec4(0u);
  tile[mine + SCALES_AT + lane / 4u][lane % 4u] = scale;
  subgroupBarrier();
  [[unroll]] for (uint u = 0u; u < UNITS; u++) { sums[u] = matrix_of_zeros(); }
  [[unroll]] for (uint nth = 0u; nth < CHUNKS; nth++) multiply(nth);
  acc = matrix_of_zeros();
  [[unroll]] for (uint u = 0u; u < UNITS; u++) {
    load_scales(scales, (mine + SCALES_AT) * 4u + u * MM);
    add_scaled(acc, scales, sums[u]);
  }
  subgroupBarrier();
  coopMatStore(acc, tile, mine, SUM_ROW, gl_CooperativeMatrixLayoutColumnMajor);
  barrier();
  uint o = gl_LocalInvocationIndex;
  if (o >= MM) return;
  float sum = 0.0;
  [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) sum += uintBitsToFloat(tile[s * PIECE + o / 4u][o % 4u]);
  if (column < p.n) store_number(y, column, bounded(sum + bias));
}
