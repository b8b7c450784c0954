// Attention of int8 queries, keys and values in one dispatch, on matrix units: y = softmax(q k^T + mask) v
// with the bytes of attention_q8.comp, which explains the mask and the formulas. The scores stay in shared
// memory.
//
// Memory    q: (matrices * queries, depth), k: (matrices * keys, depth), v: (matrices * keys, width), y:
//           (matrices * queries, width) in kPackedInt8_16C; y is written in words. The matrices of Q_HEADS
//           (K_HEADS, ...) heads lie side by side; q, k and v may lie among other columns. Depth is a
//           multiple of MK, width of 16. The mask is as in attention_q8.comp.
// Threads   a workgroup computes ROWS rows of one matrix. A subgroup multiplies MM keys (columns of v) by all
//           rows; its sums pass through its own part of shared memory, ROUND rows at a time, and an
//           invocation reads the sums of one row and four keys (columns).
//
//   tile (uvec4):  [q: ROWS x depth | TILE keys x depth, or v transposed: width x TILE keys
//                   | scores, then weights: ROWS x 16 * KEYS16 | sums of each subgroup: ROUND x MM int32]
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(constant_id = 1) const uint Q_HEADS = 1;
layout(constant_id = 2) const uint K_HEADS = 1;
layout(constant_id = 3) const uint V_HEADS = 1;
layout(constant_id = 4) const uint Y_HEADS = 1;
layout(constant_id = 5) const uint ROWS = 32;    // whole matrices, at most LOCAL_X
layout(constant_id = 6) const uint KEYS16 = 16;  // at least TILE / 16 * ceil(keys / TILE)
layout(constant_id = 7) const uint TILE = 64;    // keys in shared memory at a time, at least MM per subgroup
layout(constant_id = 8) const uint DEPTH16 = 4;  // depth / 16
layout(constant_id = 9) const uint WIDTH16 = 4;  // width / 16
layout(constant_id = 14) const bool MASK = false;
layout(constant_id = 15) const bool NORMAL = false;
layout(constant_id = 16) const bool LITERT = false;
layout(constant_id = 17) const bool TABLE = false;  // apply a lookup table after the softmax
layout(constant_id = 18) const bool SMALL_SUMS = false;  // the sums of both products are below 2^22
#include "coopmat_types.glslh"

layout(set = 0, binding = 0) readonly buffer Q { uvec4 q[]; };
layout(set = 0, binding = 1) readonly buffer K { uvec4 k[]; };
layout(set = 0, binding = 2) readonly buffer V { uvec4 v[]; };
layout(set = 0, binding = 3) readonly buffer Mask { int mask[]; };
layout(set = 0, binding = 4) readonly buffer Offsets { float offsets[]; };
layout(set = 0, binding = 5) readonly buffer Exponentials { uint exponentials[]; };  // and a table
layout(set = 0, binding = 6) writeonly buffer Y { int y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "lane.glslh"
#include "int8x4.glslh"
#define SUMS_ARE_SMALL SMALL_SUMS
#include "requantize.glslh"
#include "softmax_sum.glslh"
#include "transposed4x4.glslh"

const uint SUBGROUPS = LOCAL_X / SUBGROUP, FRAGMENTS = ROWS / MN;
const uint SCORED = TILE / (16u * SUBGROUPS);               // matrices of keys for each subgroup
const uint VALUED = (WIDTH16 + SUBGROUPS - 1u) / SUBGROUPS;  // matrices of columns of v for each subgroup
const uint ROUND = ROWS < SUBGROUP ? ROWS : SUBGROUP, IN_ROUND = ROUND / MN;
const int FIRST_SUM = SMALL_SUMS ? SMALL_SUM : 0;
// Strides in uvec4; each includes one uvec4 of padding against bank conflicts.
const uint D_ROW = DEPTH16 + 1u, T_ROW = TILE / 16u + 1u, S_ROW = KEYS16 + 1u, SUMS_ROW = 5u;
const uint KEYS = TILE * D_ROW, VALUES = 16u * WIDTH16 * T_ROW;
const uint STAGED_AT = ROWS * D_ROW, SCORES_AT = STAGED_AT + (KEYS > VALUES ? KEYS : VALUES);
const uint SUMS_AT = SCORES_AT + ROWS * S_ROW;
shared uvec4 tile[SUMS_AT + SUBGROUPS * ROUND * SUMS_ROW];
shared uint exps[TABLE ? 320 : 256];  // exponentials, then (TABLE) the lookup table
shared int tops[ROWS];
shared uint divisors[ROWS];
shared float factors[ROWS];
shared int row_sums[ROWS];                         // sums of rows of q, later of rows of weights
shared ivec4 column_sums[TILE > 16u * WIDTH16 ? TILE / 4u : 4u * WIDTH16];  // of keys, later of columns of v
shared vec4 added_to[TILE / 4u];                   // the mask's offsets for keys, if all rows share them

uint me = gl_LocalInvocationIndex, keys4;
uint matrix, first;  // the workgroup's matrix, and its first row in this matrix
#define mine (SUMS_AT + gl_SubgroupID * ROUND * SUMS_ROW)

#include "attention_mask.glslh"
#include "attention_weights.glslh"

// Return the index of the matrix's first row in its `run`-th block of 16 columns.
uint run_at(uint first_column, uint heads, uint wide16, uint run, uint rows) {
  uint column = first_column + matrix % heads * wide16 + run;
  return (column * (p.matrices / heads) + matrix / heads) * rows;
}

int sum_of_bytes(uvec4 of) {
  int sum = 0;
  [[unroll]] for (uint i = 0u; i < 4u; i++) sum += dotPacked4x8EXT(int(of[i]), 0x01010101);
  return sum;
}

// Store rows [row, row + ROUND) of a subgroup's sums.
#define STORE_SUMS(acc, row)                                                                       \
  subgroupBarrier();                                                                               \
  [[unroll]] for (uint j_ = 0u; j_ < IN_ROUND; j_++)                                               \
    coopMatStore(acc[(row) / MN + j_], tile, mine + j_ * MN * SUMS_ROW, SUMS_ROW,                  \
        gl_CooperativeMatrixLayoutColumnMajor);                                                    \
  subgroupBarrier()

// Return four of the stored sums: those of row i / 4 and of columns i % 4 * 4 to i % 4 * 4 + 3.
ivec4 stored_sums(uint i) { return ivec4(tile[mine + i / 4u * SUMS_ROW + i % 4u]); }

#include "attention_scores.glslh"
#include "attention_values.glslh"

void main() {
  keys4 = ceil_div(p.keys, 4u);
  uint parts = ceil_div(p.queries, ROWS), group = workgroup_index();
  matrix = group / parts;
  first = group % parts * ROWS;
  for (uint i = me; i < exps.length(); i += LOCAL_X) exps[i] = exponentials[i];
  load_queries();
  compute_scores();
  barrier();
  if (me < ROWS) sum_row(me);
  barrier();
  weigh_all();
  barrier();
  compute_results();
}
