// A convolution in int8 with exact int32 accumulation on matrix units (VK_KHR_cooperative_matrix, subgroup scope), as an implicit
// GEMM of output pixels x output channels. One group; weight zero points are 0.
//
// Memory    x and y: kPackedInt8_4W4C (y also float32, gemm_output.glslh). The input pixels under a tile of TH x TW outputs, all
//           taps of them, are loaded into shared memory once for CH channels; a run of 16 outputs along w is then 16 rows of a
//           matrix wherever the tap shifts it, so no tap is ever gathered again. A pixel takes CH + 16 bytes, which keeps
//           neighbours in other banks. w: kPackedInt8_32K with k = (chunk of CH channels, kh, kw, channel), read as matrices
//           straight from memory, one step ahead of their use: the loop over the taps has no barrier.
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
  uint stride_h, stride_w, pad_t, pad_l, dilation_h, dilation_w;
  int x_zero_point;
  uint tiles_h, tiles_w;                    // tiles of an image
} p;

#include "workgroup.glslh"
#include "gemm_output.glslh"
#include "coopmat_matrices.glslh"
#define ROW ((CH + 16) / 16)
shared uvec4 tile[max(HALO, SCRATCH)];
uint image, tile_h, tile_w;  // of the tile's first output
#include "coopmat_epilogue.glslh"

uint halo_w() { return (TW - 1u) * p.stride_w + (p.kw - 1u) * p.dilation_w + 1u; }
uint halo_h() { return (TH - 1u) * p.stride_h + (p.kh - 1u) * p.dilation_h + 1u; }

#define BATCH 5
// The input pixels of the tile, channels [4 * first_c4, 4 * first_c4 + CH). Padding is filled with the zero point.
void load_halo(uint first_c4) {
  int h0 = int(tile_h * p.stride_h) - int(p.pad_t), w0 = int(tile_w * p.stride_w) - int(p.pad_l);
  int block0 = w0 >> 2;  // rounds down below zero too
  uint width = halo_w(), blocks = uint(((w0 + int(width) + 3) >> 2) - block0), items = blocks * halo_h() * (CH / 4);
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
        if (column < width && line < halo_h()) tile[(line * width + column) * ROW + mine / 4u][mine % 4u] = uint(word);
      }
    }
  }
}

MatrixW next_w[FRAGMENTS_N];

void load_w(uint step_, uint n) {
  uint n_padded = ceil_div(p.n4, 4u) * 16u;
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; j++)
    coopMatLoad(next_w[j], w, (step_ * n_padded + min(n + j * MN, n_padded - MN)) * 2u, 2u, gl_CooperativeMatrixLayoutColumnMajor);
}

// One tap of all CH channels: `at` is where the tap's first pixel of the subgroup stands in the tile.
void multiply_tap(uint at, inout uint step_, uint last, uint n) {
  uint line = halo_w() * p.stride_h * ROW, run = 16u * p.stride_w * ROW;
  [[unroll]] for (uint k = 0u; k < CH / 32; k++) {
    MatrixW mw[FRAGMENTS_N] = next_w;
    step_ = min(step_ + 1u, last);
    load_w(step_, n);
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; i++) {
      MatrixX mx;
      coopMatLoad(mx, tile, at + i / (TW / 16) * line + i % (TW / 16) * run + k * 2u, p.stride_w * ROW, gl_CooperativeMatrixLayoutRowMajor);
      [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; j++) acc[i][j] = coopMatMulAdd(mx, mw[j], acc[i][j]);
    }
  }
}

uint block_of_rows(uint fragment, uint row4) {
  uint oh = tile_h + fragment / (TW / 16), ow4 = (tile_w + fragment % (TW / 16) * 16u) / 4u + row4;
  return oh < p.oh && 4u * ow4 < p.ow_padded ? (image * p.oh + oh) * (p.ow_padded / 4u) + ow4 : OUTSIDE;
}

void main() {
  uint tiles_n = ceil_div(p.n4 * 4u, BN), index = workgroup_index(), place = index / tiles_n;
  uint n = index % tiles_n * BN, n_mine = n + gl_SubgroupID % WGN * SN;
  image = place / (p.tiles_h * p.tiles_w);
  tile_h = place / p.tiles_w % p.tiles_h * TH;
  tile_w = place % p.tiles_w * TW;
  uint chunks = ceil_div(p.c, CH), last = chunks * p.kh * p.kw * (CH / 32) - 1u, step_ = 0u;
  uint first = gl_SubgroupID / WGN * (SM / TW) * halo_w() * p.stride_h * ROW;

  clear_acc();
  load_w(0u, n_mine);
  [[dont_unroll]] for (uint chunk = 0u; chunk < chunks; chunk++) {
    barrier();
    load_halo(chunk * (CH / 4));
    barrier();
    [[dont_unroll]] for (uint i = 0u; i < p.kh; i++)
      [[dont_unroll]] for (uint j = 0u; j < p.kw; j++)
        multiply_tap(first + (i * p.dilation_h * halo_w() + j * p.dilation_w) * ROW, step_, last, n_mine);
  }
  store_results(0u, n);
}
