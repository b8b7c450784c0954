// A convolution in int8 with exact int32 accumulation on matrix units (VK_KHR_cooperative_matrix, subgroup scope), as an implicit
// GEMM of output pixels x output channels. One group; weight zero points are 0.
//
// Memory    x and y: kPackedInt8_4W4C (y also float32, gemm_output.glslh). The input pixels under a tile of TH x TW outputs, all
//           taps of them, are loaded into shared memory once for CH channels; a run of 16 outputs along w is then 16 rows of a
//           matrix wherever the tap shifts it, so no tap is ever gathered again. A pixel takes CH + 16 bytes, which keeps
//           neighbours in other banks. w: kPackedInt8_16K with k = (chunk of CH channels, kh, kw, channel), BK channels of one
//           tap at a time through shared memory.
// Threads   a workgroup of WGM x WGN subgroups computes TH x TW pixels x BN channels.
// Needs     the matrix shape MM x MN x 32 in the device's list, a required subgroup size of SUBGROUP, and the input pixels of a
//           tile within HALO uvec4 (the host chooses CH so that they are).
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require

#define INVOCATIONS (WGM * WGN * SUBGROUP)
#define BM (TH * TW)
layout(local_size_x = INVOCATIONS) in;
// Known to the compiler, so that matrices are loaded with constant strides.
layout(constant_id = 3) const uint STRIDE_H = 1;
layout(constant_id = 4) const uint STRIDE_W = 1;
layout(constant_id = 5) const uint HALO_W = 18;  // input pixels under a line of the tile
layout(constant_id = 6) const uint HALO_H = 10;

layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) writeonly buffer Y { ivec4 y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint n4, y_c4;                            // blocks of output channels
  int y_zero_point, y_min, y_max;
  uint lines, oh, ow, ow_padded, channels;  // images * oh, sizes, all channels
  float y_low, y_high;
  uint c, h, w, kh, kw;                     // of the input and the filter
  uint pad_t, pad_l, dilation_h, dilation_w;
  int x_zero_point;
  uint tiles_h, tiles_w;                    // tiles of an image
} p;

#include "workgroup.glslh"
#include "gemm_output.glslh"
#include "coopmat_matrices.glslh"
#define ROW ((CH + 16) / 16)
#define W_ROW ((BK + 16) / 16)
#define W_STAGE (BN * W_ROW)
shared uvec4 tile[max(HALO + 2 * W_STAGE, SCRATCH)];
uint image, tile_h, tile_w;  // of the tile's first output
#include "coopmat_epilogue.glslh"

#define BATCH (CH / 8 - CH / 128)  // enough loads under way at once that most tiles wait for memory once
// The input pixels of the tile, channels [4 * first_c4, 4 * first_c4 + CH). Padding is filled with the zero point.
void load_halo(uint first_c4) {
  int h0 = int(tile_h * STRIDE_H) - int(p.pad_t), w0 = int(tile_w * STRIDE_W) - int(p.pad_l);
  int block0 = w0 >> 2;  // rounds down below zero too
  const uint blocks = (HALO_W + 6u) / 4u, items = blocks * HALO_H * (CH / 4);
  uint w4 = ceil_div(p.w, 4u), c4 = ceil_div(p.c, 4u), channel = min(first_c4 + gl_LocalInvocationIndex % (CH / 4), c4 - 1u);
  [[dont_unroll]] for (uint first = gl_LocalInvocationIndex; first < items; first += BATCH * INVOCATIONS) {
    ivec4 words[BATCH];
    [[unroll]] for (uint b = 0u; b < BATCH; b++) {
      uint place = (first + b * INVOCATIONS) / (CH / 4), line = place / blocks;
      int h = h0 + int(line), block = block0 + int(place - line * blocks);
      bool real = first + b * INVOCATIONS < items && uint(h) < p.h && uint(block) < w4;
      words[b] = real ? x[((image * p.h + uint(h)) * w4 + uint(block)) * c4 + channel] : ivec4(int8x4_broadcast(p.x_zero_point));
    }
    [[unroll]] for (uint b = 0u; b < BATCH; b++) {
      uint place = (first + b * INVOCATIONS) / (CH / 4), line = place / blocks, mine = gl_LocalInvocationIndex % (CH / 4);
      int column0 = (block0 + int(place - line * blocks)) * 4;
      [[unroll]] for (int i = 0; i < 4; i++) {
        uint column = uint(column0 + i - w0);
        int word = uint(column0 + i) < p.w ? words[b][i] : int8x4_broadcast(p.x_zero_point);
        if (column < HALO_W && line < HALO_H) tile[(line * HALO_W + column) * ROW + mine / 4u][mine % 4u] = uint(word);
      }
    }
  }
}

#define W_ITEMS (BN * BK / 16 / INVOCATIONS)
uvec4 next_w[W_ITEMS];

// The weights of one step: BK channels of one tap, BN output channels.
void load_w(uint step_, uint n) {
  uint n_padded = ceil_div(p.n4, 4u) * 16u, t = gl_LocalInvocationIndex;
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint item = t + i * INVOCATIONS;
    next_w[i] = w[(step_ * (BK / 16) + item / BN) * n_padded + min(n + item % BN, n_padded - 1u)];
  }
}

void store_w(uint stage) {
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint item = gl_LocalInvocationIndex + i * INVOCATIONS;
    tile[HALO + stage + item % BN * W_ROW + item / BN] = next_w[i];
  }
}

// One step: `at` is where the tap's first pixel of the subgroup and its channels stand in the tile.
void multiply_step(uint at, uint stage) {
  const uint line_pitch = HALO_W * STRIDE_H * ROW, run = 16u * STRIDE_W * ROW;
  uint w_at = HALO + stage + gl_SubgroupID % WGN * SN * W_ROW;
  [[unroll]] for (uint k = 0u; k < BK / 16; k += MK / 16) {
    MatrixX mx[FRAGMENTS_M];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; i++)
      coopMatLoad(mx[i], tile, at + i / (TW / 16) * line_pitch + i % (TW / 16) * run + k, STRIDE_W * ROW, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; j++) {
      MatrixW mw;
      coopMatLoad(mw, tile, w_at + j * MN * W_ROW + k, W_ROW, gl_CooperativeMatrixLayoutColumnMajor);
      [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; i++) acc[i][j] = coopMatMulAdd(mx[i], mw, acc[i][j]);
    }
  }
}

// Where the tap and channels of a step begin in the tile.
uint place_of_step(uint step_) {
  uint tap = step_ / (CH / BK), i = tap / p.kw;
  return (i * p.dilation_h * HALO_W + (tap - i * p.kw) * p.dilation_w) * ROW + step_ % (CH / BK) * (BK / 16);
}

uint block_of_rows(uint fragment, uint row4) {
  uint oh = tile_h + fragment / (TW / 16), ow4 = (tile_w + fragment % (TW / 16) * 16u) / 4u + row4;
  return oh < p.oh && 4u * ow4 < p.ow_padded ? (image * p.oh + oh) * (p.ow_padded / 4u) + ow4 : OUTSIDE;
}

void main() {
  uint tiles_n = ceil_div(p.n4 * 4u, BN), index = workgroup_index(), place = index / tiles_n;
  uint n = index % tiles_n * BN;
  image = place / (p.tiles_h * p.tiles_w);
  tile_h = place / p.tiles_w % p.tiles_h * TH;
  tile_w = place % p.tiles_w * TW;
  uint first = gl_SubgroupID / WGN * (SM / TW) * HALO_W * STRIDE_H * ROW, steps = p.kh * p.kw * (CH / BK);

  // One barrier a step: the weights after the present ones go into the other stage while these are multiplied, and those after
  // them are on their way into registers. Two steps a turn, so that the stage is known to the compiler.
  clear_acc();
  [[dont_unroll]] for (uint chunk = 0u; chunk * CH < p.c; chunk++) {
    uint s0 = chunk * steps;
    barrier();
    load_w(s0, n);
    load_halo(chunk * (CH / 4));
    store_w(0u);
    if (1u < steps) load_w(s0 + 1u, n);
    [[dont_unroll]] for (uint s = 0u; s < steps; s += 2u) {
      barrier();
      if (s + 1u < steps) store_w(W_STAGE);
      if (s + 2u < steps) load_w(s0 + s + 2u, n);
      multiply_step(first + place_of_step(s), 0u);
      if (s + 1u < steps) {
        barrier();
        if (s + 2u < steps) store_w(0u);
        if (s + 3u < steps) load_w(s0 + s + 3u, n);
        multiply_step(first + place_of_step(s + 1u), W_STAGE);
      }
    }
  }
  store_results(0u, n);
}
