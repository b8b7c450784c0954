// Y[M,N] = X[M,K] W[N,K]^T in int8 with exact int32 accumulation on matrix units (VK_KHR_cooperative_matrix,
// subgroup scope). Also 1x1 convolutions of any stride without padding, whose rows are pixels, and (PHASES)
// transposed convolutions whose kernel is as large as their stride: each phase has its own outputs.
//
// Memory    x and y: kPackedInt8_16C, rows of pixels (y also float32 [image, channel, pixel]); w:
//           kPackedInt8_16K, its k padded with weight zero points to whole turns. 16 k of neighbouring rows
//           or outputs are contiguous, so both tiles are loaded alike: an invocation loads the same row or
//           output in every step.
// Threads   a workgroup of WGM x WGN subgroups computes BM x BN results (coopmat_pipeline.glslh).
// Needs     the matrix shape MM x MN x MK in the device's list, and a required subgroup size of SUBGROUP.
//
//                 BN outputs                      one subgroup: FRAGMENTS_M x FRAGMENTS_N matrices of
//           +------------+------------+           MN rows x MM outputs, in registers
//           | subgroup 0 | subgroup 1 | ------->  +---------+---------+---------+
//  BM rows  +------------+------------+           | MN x MM | MN x MM | MN x MM |
//           | subgroup 2 | subgroup 3 |           +---------+---------+---------+
//           +------------+------------+           | MN x MM | MN x MM | MN x MM |
//             WGM x WGN = 2 x 2                   +---------+---------+---------+
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require

#include "sizes.glslh"

layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) buffer Y { uvec4 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
layout(constant_id = 17) const uint TRIPS = 0;  // iterations of the loop over k; 0: see push constants
#define NO_STORE_BLOCK
#include "gemm_output.glslh"
#include "coopmat_matrices.glslh"

#define W_ROW ((BK + 16) / 16)
#define STAGE ((BM + BN) * W_ROW)
#define RUNS (BK / 16)
#ifdef PHASES
#include "divided.glslh"
// Pixel (h, w) of phase (i, j) is pixel (h * phases_h + i, w * phases_w + j) of the result. Outputs are in
// the order (i, block of channels, j), so that a subgroup stores neighbouring pixels at once, in whole
// sectors.
uint place_of_phase(uint c, uint row) {
  uint run = c / 16u, pair = run / p.phases_w, j = run - pair * p.phases_w;
  uint i = pair / p.phase_blocks, block = pair - i * p.phase_blocks;
  uint line = divided(row, p.line_multiplier, p.line_shift), column = (row - line * p.ow) * p.phases_w + j;
  return ((block * p.lines + line) * p.phases_h + i) * p.ow * p.phases_w + column;
}
#define PLACE(c, place) place_of_phase(c, place)
#endif
#ifdef WIDE
#define STAGES 1
#else
#define STAGES 2
#endif
shared uvec4 tile[STAGES * STAGE > SCRATCH ? STAGES * STAGE : SCRATCH];
#include "coopmat_epilogue.glslh"
#include "coopmat_split.glslh"

const uint X_ACROSS = BM < INVOCATIONS ? BM : INVOCATIONS;  // rows loaded at once
const uint W_ACROSS = BN < INVOCATIONS ? BN : INVOCATIONS;
#define X_ITEMS (BM * RUNS / INVOCATIONS)
#define W_ITEMS (BN * RUNS / INVOCATIONS)
// The first run that an invocation loads in a step.
#define X_FIRST_RUN (BM < INVOCATIONS ? gl_LocalInvocationIndex / BM : 0u)
uvec4 next_x[SLOTS][X_ITEMS], next_w[SLOTS][W_ITEMS];
uint x_run, x_first, w_first;  // offsets of this invocation's row and output
uint group, first_row, n;  // the workgroup's group, first row and first output

#define TURN_RUNS 8  // the weights' k is padded to so many runs; WIDE: p.steps counts these
uint place_of_row(uint row) { return first_row + row < p.rows ? first_row + row : OUTSIDE; }

#ifdef CONV
#include "coopmat_gather.glslh"
#else
void begin_x(uint image, uint oh, uint ow) {
  x_first = image * p.x_pixels + oh * p.stride_h * p.x_w + ow * p.stride_w;
}

#ifdef WIDE
uint loaded[SLOTS];  // the step loaded into each slot
uvec4 load_run(uint run) { return x[(x_run + min(run, p.k16 - 1u)) * p.x_rows + x_first]; }
#else
void load_x(uint slot, uint t) {
  uint run = t * RUNS + X_FIRST_RUN, last = p.k16 - 1u;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    next_x[slot][i] = x[(x_run + min(run + i * (INVOCATIONS / X_ACROSS), last)) * p.x_rows + x_first];
}
#endif
#endif

void begin_loads() {
  uint t = gl_LocalInvocationIndex, row = min(first_row + t % X_ACROSS, p.rows - 1u);
  uint image = row / p.pixels, pixel = row - image * p.pixels, oh = pixel / p.ow;
  x_run = group * p.k16;
  begin_x(image, oh, pixel - oh * p.ow);
  uint across = ceil_div(p.n, 16u) * 16u;
#ifdef WIDE
  w_first = group * p.steps * TURN_RUNS * across + min(n + t % W_ACROSS, across - 1u);
#else
  w_first = (group * p.steps * RUNS + t / W_ACROSS) * across + min(n + t % W_ACROSS, across - 1u);
#endif
}

#ifdef WIDE
void load_step(uint slot, uint t) {
  loaded[slot] = t;
  uint mine = gl_LocalInvocationIndex, across = ceil_div(p.n, 16u) * 16u;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    next_x[slot][i] = load_run(t * RUNS + mine / X_ACROSS + i * (INVOCATIONS / X_ACROSS));
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++)
    next_w[slot][i] = w[w_first + min(t * RUNS + mine / W_ACROSS + i * (INVOCATIONS / W_ACROSS),
        p.steps * TURN_RUNS - 1u) * across];
}
#else
void load_step(uint slot, uint t) {
  load_x(slot, first_step + t);
  uint across = ceil_div(p.n, 16u) * 16u, run = min(first_step + t, p.steps - 1u) * RUNS;
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++)
    next_w[slot][i] = w[w_first + (run + i * (INVOCATIONS / W_ACROSS)) * across];
}
#endif

// Mask x at the store to shared memory: masking at the load would wait for the load.
#ifdef WIDE
uvec4 stored_run(uint slot, uint i) {
  uint run = loaded[slot] * RUNS + gl_LocalInvocationIndex / X_ACROSS + i * (INVOCATIONS / X_ACROSS);
  return run < p.steps * TURN_RUNS ? next_x[slot][i] : uvec4(0u);
}
#else
#define stored_run(slot, i) operand(next_x[slot][i])
#endif

void store_step(uint slot, uint stage) {
  uint t = gl_LocalInvocationIndex, base = stage * STAGE;
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++)
    tile[base + (BN + t % X_ACROSS) * W_ROW + t / X_ACROSS + i * (INVOCATIONS / X_ACROSS)] =
        stored_run(slot, i);
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++)
    tile[base + t % W_ACROSS * W_ROW + t / W_ACROSS + i * (INVOCATIONS / W_ACROSS)] = next_w[slot][i];
}

#ifndef move_step
void move_step(uint from, uint to) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) next_x[to][i] = next_x[from][i];
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) next_w[to][i] = next_w[from][i];
}
#endif

uint x_place(uint t, uint stage) { return stage * STAGE + (BN + subgroup_m) * W_ROW; }
uint w_place(uint stage) { return stage * STAGE + subgroup_n * W_ROW; }
#define X_RUN(j) ((j) * MN * W_ROW)
#define X_STRIDE W_ROW
#define LOAD_ONCE keep_parameters(load_parameters(n, group * p.n, p.n))
#include "coopmat_pipeline.glslh"

void main() {
  uint tiles_n = ceil_div(p.n, BN), tiles_m = ceil_div(p.rows, BM);
  uint index = workgroup_index(), steps = p.steps;
  TAKE_PART;
  group = index / (tiles_n * tiles_m);
  n = index % tiles_n * BN;
  first_row = index / tiles_n % tiles_m * BM;
  begin_loads();
  clear_acc();
#ifdef WIDE
  steps = ceil_div(steps * TURN_RUNS, RUNS);
#endif
  multiply_steps(TRIPS > 0u ? TRIPS : steps);
  ONCE_ALL_SUMS store_results(n, group * p.n, p.n);
}
