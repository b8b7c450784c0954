// A convolution of float16 images with int8 weights on matrix units of float16 with float32 sums
// (VK_KHR_cooperative_matrix, subgroup scope), as conv2d_q8csw_tiles_coopmat.comp, but weights come straight
// from memory into matrices, as in gemm_q8csw_straight_coopmat.comp: only pixels go through shared memory,
// and between two chunks of channels no subgroup waits for another.
//
// Memory    x and y: NCHW of float16; lines of x are whole vectors of four pixels, those of y whole runs of
//           eight, and channels of a group whole runs of eight. The input pixels under a tile of TH x TW
//           outputs, all taps of them, are loaded into shared memory once for CH channels; a run of MN
//           outputs along w is then MN rows of a matrix wherever the tap shifts it. A pixel takes 2 CH + 16
//           bytes, which keeps neighbours in other banks. w: kPackedInt8_32K with k = (chunk of CH channels,
//           kh, kw, channel). channels: float_output.glslh.
// Threads   a workgroup of WGM x WGN subgroups computes TH x TW pixels x BN channels. An invocation brings
//           RUN channels of four pixels at a time, and takes eight pixels of a channel away.
// Needs     the matrix shape 16 x MN x 16 in the device's list, with sums of float32 and of float16, a
//           required subgroup size of SUBGROUP, and shared memory for the input pixels of a tile.
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

#define BM (TH * TW)
layout(local_size_x = INVOCATIONS) in;
// Known to the compiler, so that matrices are loaded with constant strides.
layout(constant_id = 3) const uint STRIDE_H = 1;
layout(constant_id = 4) const uint STRIDE_W = 1;
layout(constant_id = 5) const uint HALO_W = 18;  // input pixels under a line of the tile
layout(constant_id = 6) const uint HALO_H = 10;
layout(constant_id = 7) const uint KW = 3;

layout(set = 0, binding = 0) readonly buffer X { uvec2 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { uvec4 y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float16.glslh"
#define NO_STORE_ROW
#include "float_output.glslh"
#define DEPTH 1
#include "coopmat_half.glslh"

#define RUNS (CH / RUN)
#define X_ROW (RUNS + 1)
#define BLOCKS (CH / 32)  // of weights, of a tap
const uint HALO = HALO_H * HALO_W * X_ROW;
#define Y_ROW (BM / RUN + 1)
// Pixels and zero points; then scales and biases; then results.
const uint FIRST = HALO + 2 * BN, LAST = BN * (MN / 2 > Y_ROW ? MN / 2 : Y_ROW);
shared uvec4 tile[FIRST > LAST ? FIRST : LAST];
#define thread gl_LocalInvocationIndex
uint group, n;               // of the workgroup
uint image, tile_h, tile_w;  // of the tile's first output
#include "half_pixels.glslh"
#include "half_runs_epilogue.glslh"

MatrixW pairs[BLOCKS][FRAGMENTS_N], zeros[FRAGMENTS_N], low[FRAGMENTS_N], high[FRAGMENTS_N];
MatrixX right[2][FRAGMENTS_M];
uint w_first[FRAGMENTS_N], w_taps;  // where the outputs of a matrix begin, and the taps of all chunks

void begin_w(uint chunks) {
  uint blocks_n = ceil_div(4u * p.n4, MM);
  w_taps = chunks * p.taps;
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    w_first[i] =
        (group * blocks_n + min((n + subgroup_n) / MM + i, blocks_n - 1u)) * w_taps * BLOCKS * 2u * MM;
}

// The weights of tap t of all chunks' taps, two blocks of channels or more at once: their loads share a
// counter, so that to wait for the first is to wait for the last.
void load_w(uint t) {
  [[unroll]] for (uint s = 0u; s < BLOCKS; s++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
      coopMatLoad(pairs[s][i], w, w_first[i] + (t * BLOCKS + s) * 2u * MM, 2,
          gl_CooperativeMatrixLayoutRowMajor);
}

float of_channel(uint output_, uint what) {
  uint mine = min(n + output_, 4u * p.n4 - 1u);
  return channels[3u * (group * p.n4 + mine / 4u) + what][mine % 4u];
}

// Rows of zero points, a row for each output: subtracted as a whole.
void store_zeros() {
  for (uint i = thread; i < BN; i += INVOCATIONS) {
    uvec4 row = uvec4(half_zero(of_channel(i, ZERO)));
    tile[HALO + 2u * i] = row;
    tile[HALO + 2u * i + 1u] = row;
  }
}
void load_zeros() {
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    coopMatLoad(zeros[i], tile, HALO + (subgroup_n + i * MM) * 2u, 2, gl_CooperativeMatrixLayoutRowMajor);
}

uint x_place(uint tap) {
  uint kh = tap / KW, kw = tap - kh * KW;
  uint line = subgroup_m / TW * STRIDE_H + kh * p.dilation_h,
       column = subgroup_m % TW * STRIDE_W + kw * p.dilation_w;
  return (line * HALO_W + column) * X_ROW;
}
#define X_RUN(j) (((j) * MN / TW * STRIDE_H * HALO_W + (j) * MN % TW * STRIDE_W) * X_ROW)

void fetch(uint buffer_, uint at, uint k16) {
  [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    coopMatLoad(right[buffer_][j], tile, at + X_RUN(j) + k16 * 2u, STRIDE_W * X_ROW,
        gl_CooperativeMatrixLayoutColumnMajor);
}

#define multiply(left_, buffer_)                            \
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)        \
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)      \
      acc[i][j] = coopMatMulAdd(left_[i], right[buffer_][j], acc[i][j]);

// Tap `tap` of a chunk, t of all chunks. The next one's first matrices of pixels are loaded, too: after a
// chunk's last tap again its own, in vain.
void multiply_tap(uint tap, uint t) {
  uint at = x_place(tap), next = x_place(min(tap + 1u, p.taps - 1u));
  [[unroll]] for (uint s = 0u; s < BLOCKS; s++) {
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      halves_of_pairs(pairs[s][i], zeros[i], low[i], high[i]);
    }
    if (s == BLOCKS - 1u) load_w(min(t + 1u, w_taps - 1u));
    fetch(1u, at, 2u * s + 1u);
    multiply(low, 0u)
    if (s + 1u < BLOCKS) fetch(0u, at, 2u * s + 2u);
    else fetch(0u, next, 0u);
    multiply(high, 1u)
  }
}

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), tiles = p.tiles_h * p.tiles_w;
  uint index = workgroup_index(), place = index / tiles_n, chunks = ceil_div(p.group_channels, CH);
  n = index % tiles_n * BN;
  group = place / (p.images * tiles);
  place -= group * p.images * tiles;
  image = place / tiles;
  tile_h = place / p.tiles_w % p.tiles_h * TH;
  tile_w = place % p.tiles_w * TW;
  begin_w(chunks);
  load_w(0u);
  float scale = of_channel(thread, SCALE), bias = of_channel(thread, BIAS);
  clear_acc();
  [[dont_unroll]] for (uint chunk = 0u; chunk < chunks; chunk++) {
    begin_chunk(chunk);
    [[dont_unroll]] for (uint first = 0u; first < ITEMS; first += BATCH) {
      load_items(first);
      if (first == 0u) {  // what is there is no longer needed
        if (chunk == 0u) store_zeros();
        barrier();
      }
      store_items(first);
    }
    barrier();
    if (chunk == 0u) load_zeros();
    fetch(0u, x_place(0u), 0u);
    [[dont_unroll]] for (uint tap = 0u; tap < p.taps; tap++) multiply_tap(tap, chunk * p.taps + tap);
  }
  store_results(scale, bias);
}
