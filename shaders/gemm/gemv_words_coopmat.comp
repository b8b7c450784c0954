// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] for few rows on matrix units with float32 sums: float16
// rows on float16 matrix units, or (BRAIN) float32 rows on bfloat16 matrix units. As in
// gemv_coopmat.comp, each subgroup has a part of k, but shared memory holds only the sums. Invocations
// load weights and x of a whole chunk (CHUNK k) at once, 16 bytes at a time, and assemble the matrices in
// registers.
//
// Memory    x: float16 or (BRAIN) float32 rows, whose k is whole chunks, as uvec4; w: int8, in the order of
//           straight_pairs.glslh; numbers: float32 parameters as vec4 (float_output.glslh); y: rows of the
//           type of x.
// Threads   a workgroup of LOCAL_X invocations computes BM rows x BN outputs; ROW_TILES neighbouring
//           workgroups compute the same outputs, each for another tile of rows. The subgroups' sums are added
//           in the same order every time.
// Needs     matrices of 16 outputs x 16 k and at most BM rows (BRAIN: 16 rows), in which an invocation holds
//           pairs of elements along k; LOCAL_X is whole subgroups.
//
//     k -->     | subgroup 0 | subgroup 1 | subgroup 2 | ...   w above x: each subgroup has a part of k, and
//   BN outputs  |            |            |            |       for it matrices of sums, MN rows x MM outputs
//               +------------+------------+------------+       each
//   BM rows     |            |            |            |
//                 sums: shared memory, added from subgroup 0 on --> y, BM rows x BN outputs
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BRAIN
#extension GL_EXT_bfloat16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#define Row vec4
#else
#define Row uvec2
#endif
#extension GL_EXT_control_flow_attributes : require

#include "lane.glslh"
#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Numbers { float numbers[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Row y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"

// A block of weights in memory is BLOCK k of MM outputs, two uvec4 for each output. In a chunk of four
// blocks, word i of every uvec4 belongs to the i-th of four matrices of pairs. A column of these matrices
// corresponds to one uvec4 of a block, and to a run of x, whose words belong to the same four matrices.
// `place` is the offset in a chunk of a uvec4 of weights: word i of this uvec4 has two neighbouring elements
// of a row of matrix i.
#define BLOCK 32u
#define CHUNK 128u
#define LINES (CHUNK / BLOCK * 2u * MM)  // number of uvec4 of weights in a chunk
#define place_row(place) ((place) / 2u % 16u)
#define lane own_lane
#define me gl_LocalInvocationIndex
// n: first output; biased: the float16 number 1024 in both halves of a register
uint n, chunks, first_chunk, biased;

float number(uint c, uint what);  // return a float32 parameter of channel c

// words_halves.glslh or words_parts.glslh assembles and multiplies the matrices, and defines
//   void begin_rows()                     set the first row of the workgroup's tile (one of ROW_TILES)
//   void find_places()                    find the offsets of this invocation's words in a chunk
//   void load(uint t), multiply(uint t)   load and multiply chunk t of the subgroup
//   void load_zeros()                     make matrices of the zero points `zero`, through shared memory
//   void clear_sums(), share_sums()       clear the subgroup's sums, and store them to shared memory
//   void store_results()                  add the sums of all subgroups, then scale and store the results
// These functions use the subgroup's part of `tile`, which begins at `mine`. This part holds offsets and zero
// points, later sums.
#ifdef BRAIN
#include "words_parts.glslh"
#else
#include "words_halves.glslh"
#endif

float number(uint c, uint what) { return numbers[c / 4u * 12u + 4u * what + c % 4u]; }

void main() {
  chunks = p.k / CHUNK;
  uint steps = ceil_div(chunks, SUBGROUPS), last = 4u * p.n4 - 1u;
  n = workgroup_index() / ROW_TILES * BN;
  begin_rows();
  first_chunk = gl_SubgroupID * steps;
  biased = 0x64006400u + (p.m >> 31);
  if (!SIGNED)
    [[unroll]] for (uint i = 0u; i < OWN; i++) zero[i] = number(min(n + lane + i * SUBGROUP, last), 2u);
  float parameter = numbers[min(3u * n + me % PARAMETERS, 3u * last + 2u)];
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) w_first[i] = min(n / MM + i, last / MM) * chunks * LINES;
  find_places();
  load(0u);
  clear_sums();
  if (!SIGNED) load_zeros();
  [[dont_unroll]] for (uint t = 1u; t < steps; t++) {
    multiply(t - 1u);
    load(t);
  }
  multiply(steps - 1u);
  subgroupBarrier();
  share_sums();
  // unconditional: a branch would delay the load of `parameter`
  parameters[me % PARAMETERS / 4u][me % 4u] = parameter;
  barrier();
  store_results();
}
