// Attention of int8 queries, keys and values in one dispatch: y = softmax(q k^T + mask) v, with the bytes
// that four separate dispatches give. The scores, their sums with the mask, and the weights are int8; the
// scores stay in shared memory. The products have the bits of matmul_q8_tile.comp, and the softmax has the
// bits of softmax_onnxruntime_q8.comp.
//
//   MASK   an int8 mask is added to the scores. A sum is the integer nearest to score * ra + offsets[mask +
//          128]; the host chooses the 256 offsets so that every sum has the byte of binary_q8.comp.
//
// Memory    q: (matrices * queries, depth), k: (matrices * keys, depth), v: (matrices * keys, width), y:
//           (matrices * queries, width); depth and width are multiples of 4. The matrices of Q_HEADS
//           (K_HEADS, V_HEADS, Y_HEADS) heads lie side by side, and the elements of a batch lie one after the
//           other. If BLOCKED is 0 and the batch has several elements, the numbers of queries and keys are
//           multiples of 4.
//             BLOCKED 0   ivec4 blocks of four rows x four columns in kPackedInt8_4H4W
//             BLOCKED 1   ivec4 of 16 columns of a row in kPackedInt8_16C; y is written in words; depth and
//                         width are multiples of 16; q, k and v may lie among other columns
//           mask: words of four keys in kPackedInt8_4H4W; mask_batch, mask_head and mask_query are 0 where
//           the mask is broadcast.
// Threads   a workgroup computes 4 * ROWS4 rows of one matrix:
//
//             keys: TILE blocks of four at a time      values: TILE blocks of four at a time
//            +------+------+- - -                     +-----+
//     q      |                                        |     | TILE
//   +-----+  +------+------+- - -      one invocation +-----+
//   |     |  |      scores       |     sums a row of  |     |      one invocation computes one block of y
//   +-----+  +------+------+- - -      weights        +- - -+
//    4 * ROWS4 rows; their scores with all keys stay in shared memory, in ROWS4 * KEYS4 blocks
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(constant_id = 1) const uint Q_HEADS = 1;
layout(constant_id = 2) const uint K_HEADS = 1;
layout(constant_id = 3) const uint V_HEADS = 1;
layout(constant_id = 4) const uint Y_HEADS = 1;
layout(constant_id = 5) const uint ROWS4 = 4;    // ROWS4 * WIDTH4 <= LOCAL_X, 4 * ROWS4 <= LOCAL_X
layout(constant_id = 6) const uint KEYS4 = 32;   // at least ceil(keys / 4)
layout(constant_id = 7) const uint TILE = 32;    // blocks of four keys or values in shared memory at a time
layout(constant_id = 8) const uint DEPTH4 = 16;  // depth / 4
layout(constant_id = 9) const uint WIDTH4 = 16;  // width / 4
layout(constant_id = 10) const bool MASK = false;
layout(constant_id = 11) const bool NORMAL = false;
layout(constant_id = 12) const bool LITERT = false;
layout(constant_id = 13) const bool TABLE = false;  // apply a lookup table after the softmax

layout(set = 0, binding = 0) readonly buffer Q { ivec4 q[]; };
layout(set = 0, binding = 1) readonly buffer K { ivec4 k[]; };
layout(set = 0, binding = 2) readonly buffer V { ivec4 v[]; };
layout(set = 0, binding = 3) readonly buffer Mask { int mask[]; };
layout(set = 0, binding = 4) readonly buffer Offsets { float offsets[]; };
layout(set = 0, binding = 5) readonly buffer Exponentials { uint exponentials[]; };  // and a table
#if BLOCKED
layout(set = 0, binding = 6) writeonly buffer Y { int y[]; };
#else
layout(set = 0, binding = 6) writeonly buffer Y { ivec4 y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#include "dot4x8.glslh"
#include "dot_block.glslh"
#include "requantize.glslh"
#include "softmax_sum.glslh"
#include "transposed4x4.glslh"

#define RUNS(words) (((words) + 3u) / 4u)
// Words of a row in shared memory: whole runs, and one word of padding against bank conflicts.
const uint WORDS = 4u * RUNS(DEPTH4 > WIDTH4 ? DEPTH4 : WIDTH4) + 1u;
shared ivec4 scores[ROWS4 * KEYS4];           // then the weights
shared ivec4 staged[TILE * WORDS];
shared uint exps[TABLE ? 320 : 256];  // exponentials, then (TABLE) the lookup table
shared int tops[4 * ROWS4];
shared uint divisors[4 * ROWS4];
shared float factors[4 * ROWS4];

uint me = gl_LocalInvocationID.x, rows4, keys4;
uint matrix, first;  // the workgroup's matrix, and its first block of rows in this matrix

#include "attention_blocks.glslh"
#include "attention_mask.glslh"
#include "attention_weights.glslh"

// Compute the scores of block r of rows and block `at` of keys, which is block `place` in shared memory.
void score(uint r, uint at, uint place) {
  Block block;
  clear(block);
  for (uint run = 0u; run < RUNS(DEPTH4); run++) {
    ivec4 xs[4], ws[4];
    FOUR_BLOCKS(xs, q, p.q_column, first + r, p.queries, Q_HEADS, DEPTH4, run)
    [[unroll]] for (uint i = 0u; i < 4u; i++) ws[i] = staged[place * WORDS + 4u * run + i];
    [[unroll]] for (uint i = 0u; i < 4u; i++)
      add_block(block, xs[i], ws[i], 4u * run + i < DEPTH4 ? -1 : 0);
  }
  ivec4 words;
  vec4 added = MASK ? offsets_of(first + r, 0u, at) : vec4(0.0);
  [[unroll]] for (uint i = 0u; i < 4u; i++) {
    ivec4 sums = exact_sums(block, i, p.q_zero, p.k_zero, 4u * DEPTH4);
    words[i] = requantize4(sums, vec4(p.score_multiplier), p.score_zero, -128, 127);
    if (MASK && p.mask_query != 0u) added = offsets_of(first + r, i, at);
    if (MASK) words[i] = with_mask(words[i], added);
    words[i] = first_scores(words[i], int(p.keys) - int(4u * at));
    ivec4 own = int8x4_unpack(words[i]);
    atomicMax(tops[4u * r + i], max(max(own.x, own.y), max(own.z, own.w)));
  }
  scores[r * KEYS4 + at] = words;
}

void compute_scores() {
  for (uint begin = 0u; begin < keys4; begin += TILE) {
    for (uint i = me; i < TILE * RUNS(DEPTH4); i += LOCAL_X) {
      uint place = i % TILE, run = i / TILE;
      ivec4 blocks[4];
      FOUR_BLOCKS(blocks, k, p.k_column, min(begin + place, keys4 - 1u), p.keys, K_HEADS, DEPTH4, run)
      [[unroll]] for (uint w = 0u; w < 4u; w++) staged[place * WORDS + 4u * run + w] = blocks[w];
    }
    barrier();
    for (uint i = me; i < ROWS4 * TILE; i += LOCAL_X) {
      uint r = i / TILE, place = i % TILE;
      if (first + r < rows4 && begin + place < keys4) score(r, begin + place, place);
    }
    barrier();
  }
}

uvec4 exponentials_at(uint row, uint at) {
  return exponentials_of(int8x4_unpack(scores[row / 4u * KEYS4 + at][row % 4u]), tops[row]);
}

void sum_row(uint row) {
  uint total = 0u;
  for (uint i = 0u; i < keys4; i++) total = with_four(total, exponentials_at(row, i), p.keys - 4u * i);
  keep_sum(row, total);
}

// Replace the scores of four keys in a row by their weights; the weights of keys beyond the last key are not
// used.
void weigh(uint row, uint at) {
  ivec4 results = results_of(exponentials_at(row, at), divisors[row], factors[row]);
  scores[row / 4u * KEYS4 + at][row % 4u] = weights_of(results, 4u);
}

// Multiply rows of weights by columns of values; each invocation computes one block of y.
void compute_results() {
  uint r = me / WIDTH4, column = me % WIDTH4;
  bool mine = r < ROWS4 && first + r < rows4;
  Block block;
  clear(block);
  for (uint begin = 0u; begin < keys4; begin += TILE) {
    for (uint i = me; i < TILE * RUNS(WIDTH4); i += LOCAL_X) {
      uint place = i % TILE, run = i / TILE;
      ivec4 blocks[4];
      FOUR_BLOCKS(blocks, v, p.v_column, min(begin + place, keys4 - 1u), p.keys, V_HEADS, WIDTH4, run)
      [[unroll]] for (uint w = 0u; w < 4u; w++)
        staged[place * WORDS + 4u * run + w] = transposed4x4(blocks[w]);
    }
    barrier();
    uint end = mine ? min(TILE, keys4 - begin) : 0u;
    for (uint i = 0u; i < end; i++) {
      int kept = begin + i + 1u < keys4 ? -1 : last_mask(p.keys);
      add_block(block, scores[r * KEYS4 + begin + i], staged[i * WORDS + column], kept);
    }
    barrier();
  }
  if (!mine) return;
  ivec4 words;
  [[unroll]] for (uint i = 0u; i < 4u; i++) {
    ivec4 sums = exact_sums(block, i, p.weight_zero, p.v_zero, p.keys);
    words[i] = requantize4(sums, vec4(p.y_multiplier), p.y_zero, -128, 127);
  }
#if BLOCKED
  uint at = run_at(0u, first + r, p.queries, Y_HEADS, WIDTH4, column / 4u);
  [[unroll]] for (uint i = 0u; i < 4u; i++)
    if (4u * (first + r) + i < p.queries) y[4u * (at + i) + column % 4u] = words[i];
#else
  y[blocks_at(matrix, first + r, rows4, Y_HEADS, WIDTH4) + column] = words;
#endif
}

void main() {
  rows4 = ceil_div(p.queries, 4u);
  keys4 = ceil_div(p.keys, 4u);
  uint parts = ceil_div(rows4, ROWS4), group = workgroup_index();
  matrix = group / parts;
  first = group % parts * ROWS4;
  for (uint i = me; i < exps.length(); i += LOCAL_X) exps[i] = exponentials[i];
  for (uint i = me; i < 4u * ROWS4; i += LOCAL_X) tops[i] = -128;
  barrier();
  compute_scores();
  if (me < 4u * ROWS4 && first + me / 4u < rows4) sum_row(me);
  barrier();
  for (uint i = me; i < 4u * ROWS4 * keys4; i += LOCAL_X) {  // neighbouring invocations: rows of one block
    uint r = i / 4u / keys4;
    if (first + r < rows4) weigh(4u * r + i % 4u, i / 4u % keys4);
  }
  barrier();
  compute_results();
}
