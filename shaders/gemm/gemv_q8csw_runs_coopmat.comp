// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] for 17 to 64 rows on float16 matrix units with float32
// sums; gemv_words_coopmat.comp is for fewer rows. An invocation loads x and weights in runs of 16 bytes
// (four words). Words 0 and 1 of a run of x become elements of one matrix, words 2 and 3 elements of the next
// matrix. The weights are stored in the corresponding order of k, so x needs no copy in shared memory.
//
// Memory    x: float16 rows as uvec4, padded to a multiple of CHUNK k; w: int8 blocks of 16 outputs x CHUNK
//           k, in the order of the invocations' words (half_weights.in_runs); numbers: float32 parameters as
//           vec4 (straight_pairs.glslh); y: float16 rows.
// Threads   a workgroup of LOCAL_X invocations computes BM rows x BN outputs; ROW_TILES neighbouring
//           workgroups have the same outputs and different tiles of rows. WGN subgroups sum the same part of
//           k, each for different outputs. The parts' sums are added in the same order every time.
// Needs     matrices of 16 outputs x 16 k and at most 16 rows. In a matrix of weights, an invocation holds
//           pairs of elements along k; in a matrix of x, it holds the pair at k and the pair at k + 8.
//           LOCAL_X is at least WGN subgroups.
//
//     k -->     | 0, 1 | 2, 3 | 4, 5 | ...   the subgroups of each part of k, for WGN = 2. Even subgroups
//   BN outputs  |      |      |      |       compute the first half of the outputs, odd ones the second half,
//               +------+------+------+       as FRAGMENTS_M x FRAGMENTS_N matrices of MN rows x MM outputs
//   BM rows     |      |      |      |
//                 shared memory holds the parts' sums; they are added from the first part to the last --> y
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
#include "half_words.glslh"

#define CHUNK 32u  // k of two matrices, each of which takes half the words of a run of x
#define RUNS (CHUNK / RUN)
const uint SUBGROUPS = LOCAL_X / SUBGROUP, SLICES = SUBGROUPS / WGN;
const uint PARAMETERS = 3u * BN, OWN = (PARAMETERS + LOCAL_X - 1u) / LOCAL_X;
const uint OWN_N = BN / WGN, SUM_ROW = OWN_N / 4u + 1u;  // one uvec4 pads a row against bank conflicts
const uint PIECE = ROUND * SUM_ROW;  // number of uvec4 of a subgroup: offsets and zero points, later sums
shared uvec4 tile[SUBGROUPS * PIECE];
shared vec4 parameters[PARAMETERS / 4u];
#define mine (gl_SubgroupID * PIECE)
#define lane own_lane
#define me gl_LocalInvocationIndex

uvec4 next_x[2][FRAGMENTS_M][MOST_LOADS_X], next_w[2][FRAGMENTS_N][MOST_WORDS_W / 4u];
MatrixW zeros[FRAGMENTS_N], low;
MatrixX lower;
uint n, first_row, first_chunk, biased;
uint w_first[FRAGMENTS_N], x_first[FRAGMENTS_M][MOST_LOADS_X];

// Load the next chunk of this subgroup. Addresses are incremented: recomputing them takes more
// instructions.
void load(uint set) {
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
    load_words(next_w[set][i], w_first[i]);
    w_first[i] += MATRIX_LINES;
  }
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    [[unroll]] for (uint l = 0u; l < LOADS_X; l++) {
      next_x[set][j][l] = x[x_first[j][l]];
      x_first[j][l] += RUNS;
    }
}

void multiply(uint set) {
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
      words_become_halves(next_w[set][i], h, biased, zeros[i], low);
      [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++) {
        [[unroll]] for (uint l = 0u; l < LOADS_X; l++) {
          set_word(lower, word_of_run(l), next_x[set][j][l][2u * h]);
          set_word(lower, further_word(l), next_x[set][j][l][2u * h + 1u]);
        }
        acc[i][j] = coopMatMulAdd(low, lower, acc[i][j]);
      }
    }
}

// Find the runs that hold this invocation's elements: load a matrix in which every word is its own index in
// memory; a row has 8 words.
void find_places() {
  for (uint i = lane; i < 32u; i += SUBGROUP) tile[mine + i] = 4u * i + uvec4(0u, 1u, 2u, 3u);
  subgroupBarrier();
  coopMatLoad(lower, tile, mine, 2, gl_CooperativeMatrixLayoutColumnMajor);
  [[unroll]] for (uint l = 0u; l < LOADS_X; l++) {
    uint place = word_of_matrix(lower, word_of_run(l)) & 0xffffu;
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
      x_first[j][l] = min(first_row + j * MN + place / 8u, p.m - 1u) * (p.k / RUN) + first_chunk * RUNS +
          place % RUNS;
  }
}

float number(uint c, uint what) { return numbers[c / 4u * 12u + 4u * what + c % 4u]; }

void load_zeros(uint last) {
  for (uint i = lane; i < OWN_N; i += SUBGROUP)
    tile[mine + 2u * i] = tile[mine + 2u * i + 1u] = uvec4(half_zero(number(min(n + i, last), 2u)));
  subgroupBarrier();
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    coopMatLoad(zeros[i], tile, mine + i * MM * 2u, 2, gl_CooperativeMatrixLayoutRowMajor);
}

void main() {
  uint chunks = p.k / CHUNK, steps = ceil_div(chunks, SLICES), last = 4u * p.n4 - 1u;
  uint tile_n = workgroup_index() / ROW_TILES * BN;
  first_row = workgroup_index() % ROW_TILES * BM;
  n = tile_n + gl_SubgroupID % WGN * OWN_N;
  first_chunk = gl_SubgroupID / WGN * steps;
  uint count = first_chunk < chunks ? min(steps, chunks - first_chunk) : 0u;
  first_chunk = min(first_chunk, chunks - 1u);
  biased = 0x64006400u + (p.m >> 31);  // keep the constant in a register
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    w_first[i] = (min(n / MM + i, last / MM) * chunks + first_chunk) * MATRIX_LINES + own_words;
  find_places();
  load(0u);
  clear_acc();
  if (!SIGNED) {
    subgroupBarrier();
    load_zeros(last);
  }
  float parameter[OWN];
  [[unroll]] for (uint i = 0u; i < OWN; i++)
    parameter[i] = numbers[min(3u * tile_n + (i * LOCAL_X + me) % PARAMETERS, 3u * last + 2u)];
  // load here: after the loop, the compiler would not hoist the loads
  [[unroll]] for (uint i = 0u; i < OWN; i++)
    parameters[(i * LOCAL_X + me) % PARAMETERS / 4u][me % 4u] = parameter[i];
  uint t = 0u;
  [[dont_unroll]] for (; t + 2u < count; t += 2u) {
    load(1u);
    multiply(0u);
    load(0u);
    multiply(1u);
  }
  if (t + 1u < count) {
    load(1u);
    multiply(0u);
    multiply(1u);
  } else if (t < count) {
    multiply(0u);
  }
  [[unroll]] for (uint first = 0u; first < FRAGMENTS_M; first += ROUND / MN) {
    if (first == 0u) subgroupBarrier();  // only this subgroup uses this part of shared memory
    else barrier();
    [[unroll]] for (uint j = 0u; j < ROUND / MN; j++)
      [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
        coopMatStore(acc[i][first + j], tile, mine + j * MN * SUM_ROW + i * (MM / 4), SUM_ROW,
            gl_CooperativeMatrixLayoutColumnMajor);
    barrier();
    for (uint e = me; e < ROUND * BN / 4u; e += LOCAL_X) {
      uint row = e / (BN / 4u), block = e % (BN / 4u), to = first_row + first * MN + row;
      uint at = block / (OWN_N / 4u) * PIECE + row * SUM_ROW + block % (OWN_N / 4u);
      vec4 sums = vec4(0.0);
      [[unroll]] for (uint s = 0u; s < SLICES; s++) sums += uintBitsToFloat(tile[s * WGN * PIECE + at]);
      vec4 values = bounded(sums * parameters[3u * block] + parameters[3u * block + 1u]);
      uint c4 = tile_n / 4u + block;
      if (to < p.m && c4 < p.n4)
        y[to * (p.channels / 4u) + c4] = uvec2(float16_word(values.xy), float16_word(values.zw));
    }
  }
}
