// Convolution of float images with int8 weights on float16 matrix units with float32 sums
// (VK_KHR_cooperative_matrix, subgroup scope), as an implicit GEMM of output pixels x output channels. x and
// the weights are converted to float16 before the store to shared memory.
//
// Memory    x and y: NCHW, float32 or float16 (float_numbers.glslh). The input pixels of all taps of a tile
//           of TH x TW outputs are loaded into shared memory once for each chunk of CH channels; a run of MN
//           outputs along w is then MN rows of a matrix for every tap. A pixel takes 2 CH + 16 bytes, which
//           keeps neighbours in different banks. w: kPackedInt8_16K with k = (chunk of CH channels, kh, kw,
//           channel), elements 1 and 2 of every group of 4 swapped; or (FLOAT_WEIGHTS) floats in runs of 8 k
//           with neighbouring outputs contiguous. BK channels of one tap at a time go through shared memory
//           (coopmat_pipeline.glslh). channels and y: float_output.glslh.
// Threads   a workgroup of WGM x WGN subgroups computes TH x TW pixels x BN channels.
// Needs     the matrix shape MM x MN x MK in the device's list, a required subgroup size of SUBGROUP, and
//           shared memory for the input pixels of a tile. CH is a multiple of BK * TURNS or, with EARLY, of
//           BK: k is not padded, because zero weights would be multiplied by pixels that may be infinite.
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
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

#define BM (TH * TW)
#define CONV 1
#include "sizes.glslh"
// Specialization constants, so that matrices are loaded with constant strides.
layout(constant_id = 3) const uint STRIDE_H = 1;
layout(constant_id = 4) const uint STRIDE_W = 1;
layout(constant_id = 5) const uint HALO_W = 18;  // input pixels under a line of the tile
layout(constant_id = 6) const uint HALO_H = 10;
layout(constant_id = 7) const uint KW = 3;

#include "float_numbers.glslh"
layout(set = 0, binding = 0) readonly buffer X { Number x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float16.glslh"
#include "float_output.glslh"
#include "coopmat_half.glslh"

#define RUNS (CH / RUN)
#define X_ROW (RUNS + 1)
#define W_ROW (BK / RUN + 1)
#define STAGE (BN * W_ROW)
const uint HALO = HALO_H * HALO_W * X_ROW;
shared uvec4 tile[HALO + 2 * STAGE > SCRATCH ? HALO + 2 * STAGE : SCRATCH];
#define thread gl_LocalInvocationIndex
uint group, n;               // the workgroup's group and first output
uint image, tile_h, tile_w;  // position of the tile's first output
uint first_channel;          // first channel of the chunk, counted in the group

#include "half_epilogue.glslh"
uint place_of_row(uint row) {
  uint oh = tile_h + row / TW, ow = tile_w + row % TW;
  return oh < p.oh && ow < p.ow ? image * p.plane + oh * p.ow + ow : OUTSIDE;
}

// Load two channels of a pixel as halves.
#if FLOAT16_IMAGES
uint pair_of(uint a, uint b) { return a | b << 16; }
#else
uint pair_of(float a, float b) { return float16_word(vec2(a, b)); }
#endif

// Load the tile's input pixels for the channels of a chunk; pixels outside the image and channels beyond the
// group are zero.
void load_halo() {
  int h0 = int(tile_h * STRIDE_H) - int(p.pad_t), w0 = int(tile_w * STRIDE_W) - int(p.pad_l);
  const uint halo = HALO_H * HALO_W, items = halo * RUNS;
  uint plane = p.h * p.w, base = (image * p.c + group * p.group_channels + first_channel) * plane;
  uint count = p.group_channels - first_channel;
  [[dont_unroll]] for (uint first = thread; first < items; first += BATCH * INVOCATIONS) {
    Stored raw[BATCH][RUN];
    [[unroll]] for (uint b = 0u; b < BATCH; b++) {
      uint item = first + b * INVOCATIONS, run = item / halo, pixel = item - run * halo,
           line = pixel / HALO_W, h = uint(h0 + int(line)), column = uint(w0 + int(pixel - line * HALO_W));
      bool inside = all(bvec3(item < items, h < p.h, column < p.w));
      uint at = base + (RUN * run * p.h + h) * p.w + column;
      [[unroll]] for (uint c = 0u; c < RUN; c++) {
        bool real = inside && RUN * run + c < count;
        Stored value = stored_at(x, real ? at + c * plane : 0u);
        raw[b][c] = real ? value : Stored(0);
      }
    }
    [[unroll]] for (uint b = 0u; b < BATCH; b++) {
      uint item = first + b * INVOCATIONS, run = item / halo;
      if (item < items)
        tile[(item - run * halo) * X_ROW + run] = uvec4(pair_of(raw[b][0], raw[b][1]),
            pair_of(raw[b][2], raw[b][3]), pair_of(raw[b][4], raw[b][5]), pair_of(raw[b][6], raw[b][7]));
    }
  }
}

#include "half_staged.glslh"
void load_step(uint slot, uint t) { load_weights(slot, min(t, p.steps - 1u) * (BK / 16)); }
void store_step(uint slot, uint stage) { store_weights(slot, HALO + stage * STAGE); }

// A subgroup computes whole lines of the tile, or a run of one line. The step beyond the last tap, which is
// not multiplied, reads the last tap's pixels.
uint x_place(uint t, uint stage) {
  uint tap = min(t / (CH / BK), p.taps - 1u), kh = tap / KW, kw = tap - kh * KW;
  uint line = subgroup_m / TW * STRIDE_H + kh * p.dilation_h,
       column = subgroup_m % TW * STRIDE_W + kw * p.dilation_w;
  return (line * HALO_W + column) * X_ROW + t % (CH / BK) * (BK / RUN);
}
uint w_place(uint stage) { return HALO + stage * STAGE + subgroup_n * W_ROW; }
#define X_RUN(j) (((j) * MN / TW * STRIDE_H * HALO_W + (j) * MN % TW * STRIDE_W) * X_ROW)
#define X_STRIDE (STRIDE_W * X_ROW)
#define LOAD_ONCE load_halo()
#include "coopmat_pipeline.glslh"

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), tiles = p.tiles_h * p.tiles_w;
  uint index = workgroup_index(), place = index / tiles_n;
  n = index % tiles_n * BN;
  group = place / (p.images * tiles);
  place -= group * p.images * tiles;
  image = place / tiles;
  tile_h = place / p.tiles_w % p.tiles_h * TH;
  tile_w = place % p.tiles_w * TW;
  begin_outputs();
  uint chunks = ceil_div(p.group_channels, CH);
  clear_acc();
  [[dont_unroll]] for (uint chunk = 0u; chunk < chunks; chunk++) {
    first_channel = chunk * CH;
    begin_weights((group * chunks + chunk) * p.steps * (BK / 16));
    barrier();
    multiply_steps(p.steps);
  }
  store_results();
}
