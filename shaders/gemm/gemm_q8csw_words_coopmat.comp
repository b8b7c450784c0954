// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] on matrix units of float16 with float32 sums, as
// gemm_q8csw_straight_coopmat.comp: but weights come 16 bytes at a time, and invocations put their matrices
// together in registers.
//
// Memory    x: rows of k, whole turns of two steps of BK, of float16 in uvec4. w: of 32 outputs and CHUNK
//           k 128 uvec4, [half][row][pair], of two halves of four pairs of a row of a matrix of pairs; their
//           words are of four matrices: of 16 outputs and the other 16, of 32 k and the next. A word is as in
//           the other kernel, moved by 128 or SIGNED (coopmat_half_types.glslh). channels and y:
//           float_output.glslh. In shared memory a row is a run of BK halves, and 16 bytes of padding keep
//           neighbours in other banks.
// Threads   a workgroup of WGN subgroups, each of 32 outputs, computes BM x BN results, SPLIT: of one part of
//           k, whole turns. Weights and x of the next step are on their way meanwhile.
// Needs     the matrix shape MM x MN x MK in the device's list, of 16 outputs x 16 k, of which an invocation
//           has elements in pairs, k after k; a required subgroup size of SUBGROUP. Weights that are not
//           SIGNED have no zero points.
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = INVOCATIONS) in;
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { uvec2 y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float16.glslh"
#include "float_output.glslh"
#define BITS 8  // of a weight
#include "coopmat_half.glslh"

#define OUTPUTS 32u  // of a group of weights in memory, and of a subgroup
#define CHUNK 64u    // its k
#define LINES 128u   // its uvec4
#define CHUNKS (BK / CHUNK)
#define RUNS (BK / RUN)
#define X_ROW (RUNS + 1)
#define STAGE (BM * X_ROW)
shared uvec4 tile[2 * STAGE > SCRATCH ? 2 * STAGE : SCRATCH];
#define thread gl_LocalInvocationIndex
#define group 0u
uint n, first_row;  // of the workgroup
#include "half_epilogue.glslh"
uint place_of_row(uint row) { return first_row + row < p.m ? first_row + row : OUTSIDE; }
#include "coopmat_split.glslh"

#define X_ITEMS (BM * RUNS / INVOCATIONS)
#define X_APART (INVOCATIONS / RUNS)  // rows from one item of an invocation to its next
uvec4 next_x[X_ITEMS], next_w[2][CHUNKS][MOST_WORDS_W];
MatrixW low, zeros;
MatrixX right[FRAGMENTS_M];
uint x_first[X_ITEMS], w_first, w_place[MOST_WORDS_W], w_chunks, biased;

void load_w(uint slot, uint t) {
  [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
    uint at = w_first + min((first_step + t) * CHUNKS + c, w_chunks - 1u) * LINES;
    [[unroll]] for (uint q = 0u; q < WORDS_W; q++) next_w[slot][c][q] = w[at + w_place[q]];
  }
}

void load_x(uint t) {
  uint at = min((first_step + t) * RUNS + thread % RUNS, p.k / RUN - 1u);
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) next_x[i] = x[x_first[i] + at];
}

void store_x(uint stage) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    tile[stage * STAGE + (thread / RUNS + i * X_APART) * X_ROW + thread % RUNS] = next_x[i];
}

// Where the words of this invocation's elements lie: a matrix is loaded in which that is what they are.
void find_places() {
  for (uint i = thread; i < 32u; i += INVOCATIONS)  // row i / 2, of 8 pairs four
    tile[i] = i % 2u * 64u + i / 2u * 4u + uvec4(0u, 1u, 2u, 3u);
  barrier();
  coopMatLoad(low, tile, 0, 2, gl_CooperativeMatrixLayoutRowMajor);
  [[unroll]] for (uint q = 0u; q < WORDS_W; q++) w_place[q] = word_of_matrix(low, q);
  barrier();
}

// A step, whose weights are in `slot` and whose x is in `stage`.
void multiply(uint slot, uint stage) {
  [[unroll]] for (uint c = 0u; c < CHUNKS; c++)
    [[unroll]] for (uint b = 0u; b < 2u; b++)
      [[unroll]] for (uint h = 0u; h < 2u; h++) {
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
          coopMatLoad(right[j], tile,
              stage * STAGE + (subgroup_m + j * MN) * X_ROW + (c * 4u + b * 2u + h) * 2u, X_ROW,
              gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
          [[unroll]] for (uint q = 0u; q < WORDS_W; q++)
            set_word(low, q, pair_word(next_w[slot][c][q][b * 2u + i], h, biased));
          subtract_matrix(low, zeros);
          [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
            acc[i][j] = coopMatMulAdd(low, right[j], acc[i][j]);
        }
      }
}

// Two steps from t on, so that registers have fixed places. more: those after them are asked for, too.
#define TURN(t, more)                             \
  [[unroll]] for (uint d = 0u; d < 2u; d++) {     \
    if (more || d == 0u) {                        \
      load_w(1u - d, (t) + d + 1u);               \
      load_x((t) + d + 1u);                       \
    }                                             \
    multiply(d, d);                               \
    if (more || d == 0u) {                        \
      store_x(1u - d);                            \
      barrier();                                  \
    }                                             \
  }

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), index = workgroup_index(), steps = p.k / BK;
  TAKE_PART;
  n = index % tiles_n * BN;
  first_row = index / tiles_n * BM;
  w_chunks = p.k / CHUNK;
  biased = 0x64006400u + (p.m >> 31);  // a constant in a register, not in two instructions
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    x_first[i] = min(first_row + thread / RUNS + i * X_APART, p.m - 1u) * (p.k / RUN);
  w_first = min((n + subgroup_n) / OUTPUTS, ceil_div(4u * p.n4, OUTPUTS) - 1u) * w_chunks * LINES;
  find_places();
  if (!SIGNED) { fill_halves(zeros, 1152.0); }  // 1024, and the 128 by which weights are moved
  load_w(0u, 0u);
  load_x(0u);
  clear_acc();
  store_x(0u);
  barrier();
  [[dont_unroll]] for (uint t = 2u; t < steps; t += 2u) { TURN(t - 2u, true) }
  TURN(steps - 2u, false)
  ONCE_ALL_SUMS store_results();
}
