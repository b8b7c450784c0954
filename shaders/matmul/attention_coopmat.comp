// Attention on float16 matrix units, without the matrix of scores in memory: y = softmax(q k^T * scale +
// bias) v with float32 sums. Operands (float32 or float16) and weights are rounded to float16. Keys are
// processed in tiles, with a running maximum of the scores, as in vkq/numerics/attention.py.
//
// Memory    q, k, v and y have any strides (in elements) of batch, head and row; columns are contiguous.
//           Strides of q, k and v are multiples of 8, strides of y multiples of 4. The queries of all heads
//           that share keys form one matrix, head after head; a line of this matrix is one query.
// Threads   a workgroup computes ROWS lines of one matrix. A subgroup multiplies all lines by its own keys of
//           a tile, then all weights by its own columns of v. An invocation computes the weights of one line
//           for 1 / PARTS of the keys of a tile.
//
//   tile (uvec4):  [q: ROWS x depth | TILE keys x depth, or values: TILE x width
//                   | scores, then results: ROWS x TILE float | weights: ROWS x TILE | factors: ROWS float]
//
//                  <- TILE keys ->                        <---- width ---->
//              ^  +---+---+---+---+                   ^  +---+---+---+---+
//   ROWS lines |  | 0 | 1 | 2 | 3 |  -> weights ->    |  | 0 | 1 | 2 | 3 |   a column of blocks: a subgroup
//              v  +---+---+---+---+                   v  +---+---+---+---+
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(constant_id = 1) const uint ROWS = 64;     // lines of a workgroup: whole matrices, at most LOCAL_X
layout(constant_id = 2) const uint TILE = 64;     // keys in shared memory at a time, at least MN per subgroup
layout(constant_id = 3) const uint DEPTH16 = 4;   // depth / 16
layout(constant_id = 4) const uint WIDTH16 = 4;   // width / 16
layout(constant_id = 5) const bool Q_HALF = false;
layout(constant_id = 6) const bool BIASED = false;
layout(constant_id = 7) const bool CAUSAL = false;
layout(constant_id = 8) const bool PLACED = false;   // `places` has the positions of the queries
layout(constant_id = 9) const bool GUARDED = false;  // results of lines that attend to no key are 0, not NaN
layout(constant_id = 14) const bool KV_HALF = true;
layout(constant_id = 15) const bool Y_HALF = false;
#include "coopmat_half_types.glslh"

layout(set = 0, binding = 0) readonly buffer Q { uvec4 q[]; };
layout(set = 0, binding = 1) readonly buffer K { uvec4 k[]; };
layout(set = 0, binding = 2) readonly buffer V { uvec4 v[]; };
layout(set = 0, binding = 3) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 4) readonly buffer Places { uint places[]; };
layout(set = 0, binding = 5) writeonly buffer Y { uvec2 y[]; };

#include "push.glslh"
#include "workgroup.glslh"

const uint SUBGROUPS = LOCAL_X / SUBGROUP, DOWN = ROWS / MM;  // DOWN: matrices of lines
const uint KEYS_ACROSS = TILE / (SUBGROUPS * MN);             // matrices of keys for each subgroup
const uint VALUED = (WIDTH16 + SUBGROUPS - 1u) / SUBGROUPS;  // blocks of 16 columns of v for each subgroup
const uint ACROSS = 16u / MN;                                // matrices in a block of 16 columns
const uint PARTS = LOCAL_X / ROWS, OWN4 = TILE / 4u / PARTS;  // OWN4: keys of an invocation, divided by 4
// Strides in uvec4; each includes one uvec4 of padding against bank conflicts.
const uint D_ROW = 2u * DEPTH16 + 1u, V_ROW = 2u * WIDTH16 + 1u;
const uint S_ROW = TILE / 4u + 1u, P_ROW = TILE / 8u + 1u;
const uint STAGED_AT = ROWS * D_ROW, SCORES_AT = STAGED_AT + TILE * (D_ROW > V_ROW ? D_ROW : V_ROW);
const uint WEIGHTS_AT = SCORES_AT + ROWS * S_ROW, FACTORS_AT = WEIGHTS_AT + ROWS * P_ROW;
shared uvec4 tile[FACTORS_AT + ROWS / 4u];
shared float part_tops[LOCAL_X], part_sums[LOCAL_X];
shared uint first_keys[ROWS], last_keys[ROWS];  // for each line, the first and last key to which it attends
shared uint begin_of_all, end_of_all;           // the range of keys to which any line attends
// Base-2 logarithms of weights, before the maximum is subtracted. LEAST: the lower bound for keys to which
// a line attends; NOTHING: for all other keys.
const float LEAST = -1e38, NOTHING = -2e38;

uint me = gl_LocalInvocationIndex, row = me % ROWS, part = me / ROWS;
// batch, head, first: the workgroup's batch, head of keys and first line; seen_from, end: its range of keys
uint batch, head, first, seen_from, end;
MatrixAcc results[VALUED][ACROSS][DOWN];

// Return (head of the queries, query) of a line of the workgroup. For a line beyond the last one, return
// those of the last line.
uvec2 query_of(uint line) {
  uint at = min(first + line, p.lines - 1u), nth = at / p.queries;
  return uvec2(head * (p.lines / p.queries) + nth, at - nth * p.queries);
}

// Find the keys that each line (a query) attends to, and all keys that the workgroup reads.
void find_keys() {
  if (me == 0u) {
    begin_of_all = p.keys;
    end_of_all = 0u;
  }
  barrier();
  if (me < ROWS) {
    uint query = query_of(me).y, place = p.keys - 1u, low = 0u;
    if (CAUSAL) {
      place = PLACED ? places[batch * p.start + query] : p.start + query;
      if (p.window != 0u && place + 1u > p.window) low = place + 1u - p.window;
      place = min(place, p.keys - 1u);
    }
    first_keys[me] = low;
    last_keys[me] = place;
    atomicMin(begin_of_all, low);
    atomicMax(end_of_all, place + 1u);
  }
  barrier();
}

uvec2 halves_of(uvec4 four) {
  vec4 x = uintBitsToFloat(four);
  return uvec2(packHalf2x16(x.xy), packHalf2x16(x.zw));
}

void load_queries() {
  for (uint i = me; i < ROWS * 2u * DEPTH16; i += LOCAL_X) {
    uint line = i / (2u * DEPTH16), run = i % (2u * DEPTH16);
    uvec2 one = query_of(line);
    uint at = batch * p.q_batch + one.x * p.q_head + one.y * p.q_row + 8u * run;
    tile[line * D_ROW + run] =
        Q_HALF ? q[at / 8u] : uvec4(halves_of(q[at / 4u]), halves_of(q[at / 4u + 1u]));
  }
}

// Copy TILE rows of k or v, beginning with key `begin`, into shared memory. Rows of keys that no
// query of the workgroup attends to become 0, because they may hold NaN.
#define LOAD_ROWS(of, runs, stride, of_batch, of_head, of_row, begin)                                \
  [[unroll]] for (uint turn_ = 0u; turn_ < (TILE * (runs) + LOCAL_X - 1u) / LOCAL_X; turn_++) {      \
    uint i_ = turn_ * LOCAL_X + me, key_ = i_ / (runs), run_ = i_ % (runs);                          \
    uint at_ = batch * (of_batch) + head * (of_head) + min((begin) + key_, end - 1u) * (of_row) + 8u * run_; \
    uvec4 found_ = KV_HALF ? of[at_ / 8u]                                                            \
                           : uvec4(halves_of(of[at_ / 4u]), halves_of(of[at_ / 4u + 1u]));           \
    bool seen_ = (begin) + key_ - seen_from < end - seen_from;                                       \
    if (key_ < TILE) tile[STAGED_AT + key_ * (stride) + run_] = seen_ ? found_ : uvec4(0u);          \
  }

#include "attention_half_weights.glslh"
#include "attention_half_values.glslh"

void main() {
  uint tiles = ceil_div(p.lines, ROWS), group = workgroup_index(), matrix = group / tiles;
  batch = matrix / p.groups;
  head = matrix % p.groups;
  first = (tiles - 1u - group % tiles) * ROWS;  // the last lines, which attend to most keys, start first
  find_keys();
  seen_from = begin_of_all;
  end = end_of_all;
  load_queries();
  uvec2 own = query_of(row);
  uint bias_row = BIASED ? batch * p.b_batch + own.x * p.b_head + own.y * p.b_row : 0u;
  float top = NOTHING, sum = 0.0;
  [[unroll]] for (uint n = 0u; n < VALUED; n++)
    [[unroll]] for (uint j = 0u; j < ACROSS; j++)
      [[unroll]] for (uint i = 0u; i < DOWN; i++) results[n][j][i] = matrix_of_zeros();
  [[dont_unroll]] for (uint begin = seen_from / TILE * TILE; begin < end; begin += TILE) {
    LOAD_ROWS(k, 2u * DEPTH16, D_ROW, p.k_batch, p.k_head, p.k_row, begin)
    barrier();
    compute_scores();
    barrier();
    LOAD_ROWS(v, 2u * WIDTH16, V_ROW, p.v_batch, p.v_head, p.v_row, begin)
    compute_weights(begin, bias_row, top, sum);
    barrier();
    multiply_values();
    barrier();
  }
  part_sums[me] = sum;
  store_all();
}
