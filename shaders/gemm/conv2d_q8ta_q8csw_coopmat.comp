// A convolution in int8 with exact int32 accumulation on matrix units (VK_KHR_cooperative_matrix, subgroup
// scope), as an implicit GEMM of output pixels x output channels.
//
// Memory    x and y: kPackedInt8_16C (y also float32 [image, channel, pixel]). The input pixels of all taps
//           of a tile of TH x TW outputs are loaded into shared memory once for each chunk of CH channels; a
//           run of MN outputs along w is then MN rows of a matrix for every tap, and no tap is gathered
//           again. A pixel takes CH + 16 bytes, which keeps neighbours in different banks. w: kPackedInt8_16K
//           with k = (chunk of CH channels, kh, kw, channel), every chunk padded with weight zero points to a
//           multiple of BK * TURNS. BK channels of one tap at a time go through shared memory
//           (coopmat_pipeline.glslh).
// Threads   a workgroup of WGM x WGN subgroups computes TH x TW pixels x BN channels.
// Needs     the matrix shape MM x MN x MK in the device's list, a required subgroup size of SUBGROUP, and
//           shared memory for the input pixels of a tile.
//
//   input, HALO_H x HALO_W      rows of x for a tap    y: TH x TW pixels x BN channels
//   +---------------------+     (MN pixels of a line)  +------------+------------+
//   |  +---------------+ .|                            | subgroup 0 | subgroup 1 |  each FRAGMENTS_M x
//   |  | TH x TW, as a | .|  -------------------->     +------------+------------+  FRAGMENTS_N matrices,
//   |  | tap shifts it | .|     channels: CH at once,  | subgroup 2 | subgroup 3 |  MN pixels x MM
//   |  +---------------+ .|     BK of them a step      +------------+------------+  channels
//   +---------------------+                              WGM x WGN = 2 x 2
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require

#define BM (TH * TW)
#include "sizes.glslh"
// Specialization constants, so that matrices are loaded with constant strides.
layout(constant_id = 3) const uint STRIDE_H = 1;
layout(constant_id = 4) const uint STRIDE_W = 1;
layout(constant_id = 5) const uint HALO_W = 18;  // input pixels under a line of the tile
layout(constant_id = 6) const uint HALO_H = 10;
layout(constant_id = 7) const uint KW = 3;
// The number of iterations of the loops over k and over chunks of channels; 0: computed from the push
// constants.
layout(constant_id = 17) const uint TRIPS = 0;
layout(constant_id = 18) const uint CHUNKS = 0;

#ifdef STEM
layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
#endif
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) buffer Y { uvec4 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#ifndef STEM  // the push constants of STEM have no room for it
#define DIVISORS
#endif
#include "divided.glslh"
#define NO_STORE_BLOCK
#define NUMBERS_ALONE
#include "gemm_output.glslh"
#include "coopmat_matrices.glslh"

#define RUNS (CH / 16)
#define X_ROW (RUNS + 1)
#define W_RUNS (BK / 16)
#define W_ROW (W_RUNS + 1)
#define STAGE (BN * W_ROW)
const uint HALO = HALO_H * HALO_W * X_ROW;
shared uvec4 tile[HALO + 2 * STAGE > SCRATCH ? HALO + 2 * STAGE : SCRATCH];
#include "coopmat_epilogue.glslh"

uint group, n;               // the workgroup's group and first output
uint image, tile_h, tile_w;  // position of the tile's first output
uint x_run, x_last;          // the first run of 16 channels of the chunk, and the last of the group

uint place_of_row(uint row) {
  uint oh = tile_h + row / TW, ow = tile_w + row % TW;
  return oh < p.oh && ow < p.ow ? image * p.pixels + oh * p.ow + ow : OUTSIDE;
}

// Load the tile's input pixels for the channels of a chunk. Padding is the zero point.
#ifdef STEM
#include "coopmat_stem.glslh"
#define TILE_STRIDE_W 1  // in `tile`, pixels of neighbouring columns are contiguous
#else
#define TILE_STRIDE_W STRIDE_W
// An invocation loads all runs of two pixels at once, so that most tiles wait for memory once.
#define PIXELS_AT_ONCE 2
void load_halo() {
  int h0 = int(tile_h * STRIDE_H) - int(p.pad_t), w0 = int(tile_w * STRIDE_W) - int(p.pad_l);
  const uint halo = HALO_H * HALO_W, round_ = PIXELS_AT_ONCE * INVOCATIONS;
  uvec4 padding = uvec4(int8x4_broadcast(p.x_zero_point));
  [[dont_unroll]] for (uint first = 0u; first < halo; first += round_) {
    uvec4 runs[PIXELS_AT_ONCE][RUNS];
    [[unroll]] for (uint b = 0u; b < PIXELS_AT_ONCE; b++) {
      uint pixel = first + b * INVOCATIONS + gl_LocalInvocationIndex, line = pixel / HALO_W;
      uint h = uint(h0 + int(line)), column = uint(w0 + int(pixel - line * HALO_W));
      bool real = pixel < halo && h < p.h && column < p.w;
      uint at = (image * p.h + h) * p.w + column;
      [[unroll]] for (uint r = 0u; r < RUNS; r++)
        runs[b][r] = real ? x[min(x_run + r, x_last) * p.x_rows + at] : padding;
    }
    [[unroll]] for (uint b = 0u; b < PIXELS_AT_ONCE; b++) {
      uint pixel = first + b * INVOCATIONS + gl_LocalInvocationIndex;
      if (pixel < halo) {
        [[unroll]] for (uint r = 0u; r < RUNS; r++) tile[pixel * X_ROW + r] = operand(runs[b][r]);
      }
    }
  }
}
#endif

const uint W_ACROSS = BN < INVOCATIONS ? BN : INVOCATIONS;
#define W_ITEMS (BN * W_RUNS / INVOCATIONS)
uvec4 next_w[SLOTS][W_ITEMS];
uint w_first, w_across;

void load_step(uint slot, uint t) {
  uint run = min(t, p.steps - 1u) * W_RUNS;
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++)
    next_w[slot][i] = w[w_first + (run + i * (INVOCATIONS / W_ACROSS)) * w_across];
}

void store_step(uint slot, uint stage) {
  uint t = gl_LocalInvocationIndex;
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++)
    tile[HALO + stage * STAGE + t % W_ACROSS * W_ROW + t / W_ACROSS + i * (INVOCATIONS / W_ACROSS)] =
        next_w[slot][i];
}

#ifndef move_step
void move_step(uint from, uint to) {
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) next_w[to][i] = next_w[from][i];
}
#endif

// Return the place in `tile` of the subgroup's first pixel for step t. A subgroup's pixels are whole lines of
// the tile, or part of one line. Steps after the last tap read the last tap's pixels; their weights are 0.
uint x_place(uint t, uint stage) {
  uint tap = min(t / (CH / BK), p.taps - 1u), kh = tap / KW, kw = tap - kh * KW;
  uint line = subgroup_m / TW * STRIDE_H + kh * p.dilation_h,
       column = subgroup_m % TW * TILE_STRIDE_W + kw * p.dilation_w;
  return (line * HALO_W + column) * X_ROW + t % (CH / BK) * W_RUNS;
}
uint w_place(uint stage) { return HALO + stage * STAGE + subgroup_n * W_ROW; }
#define X_RUN(j) (((j) * MN / TW * STRIDE_H * HALO_W + (j) * MN % TW * TILE_STRIDE_W) * X_ROW)
#define X_STRIDE (TILE_STRIDE_W * X_ROW)
void load_once() {
  Parameters loaded = load_parameters(n, group * p.n, p.n);
  load_halo();
  keep_parameters(loaded);
}
#define LOAD_ONCE load_once()
#include "coopmat_pipeline.glslh"

void main() {
  uint tiles_n = ceil_div(p.n, BN), index = workgroup_index();
  uint place = DIVIDED(index, tiles_n, tiles_n), line = DIVIDED(place, p.tiles_w, tiles_w);
  n = (index - place * tiles_n) * BN;
  tile_w = (place - line * p.tiles_w) * TW;
  image = DIVIDED(line, p.tiles_h, tiles_h);
  tile_h = (line - image * p.tiles_h) * TH;
  group = 0u;
  if (p.groups > 1u) {
    uint images = p.rows / p.pixels;
    group = image / images;
    image -= group * images;
  }
  w_across = ceil_div(p.n, 16u) * 16u;
  uint chunks = CHUNKS > 0u ? CHUNKS : ceil_div(p.k16, RUNS), t = gl_LocalInvocationIndex,
       output_ = min(n + t % W_ACROSS, w_across - 1u);
  clear_acc();
  [[dont_unroll]] for (uint chunk = 0u; chunk < chunks; chunk++) {
    x_run = group * p.k16 + chunk * RUNS;
    x_last = group * p.k16 + p.k16 - 1u;
    w_first = ((group * chunks + chunk) * p.steps * W_RUNS + t / W_ACROSS) * w_across + output_;
    barrier();
    multiply_steps(TRIPS > 0u ? TRIPS : p.steps);
  }
  store_results(n, group * p.n, p.n);
}
