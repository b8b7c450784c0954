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
// Steps     a column of LINES taps, one below the other, and 32 channels: a line of pixels that is read from
//           shared memory is multiplied by all of them.
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
layout(constant_id = 8) const uint LINES = 3;  // of taps that are multiplied together: all, or one
layout(constant_id = 9) const uint DILATION_H = 1;

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

#define RUNS_N (TW / MN)  // matrices of pixels of a line
// Of a subgroup, lines of outputs, and of pixels under them for the taps of a step.
const uint OUT_LINES = SM / TW, IN_LINES = (OUT_LINES - 1) * STRIDE_H + (LINES - 1) * DILATION_H + 1;

MatrixW pairs[LINES][FRAGMENTS_N], zeros[FRAGMENTS_N], halves[LINES][FRAGMENTS_N], others;
MatrixX right[2][RUNS_N];
uint w_first[FRAGMENTS_N];  // where the outputs of a matrix begin

void begin_w(uint chunks) {
  uint blocks_n = ceil_div(4u * p.n4, MM);
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    w_first[i] = (group * blocks_n + min((n + subgroup_n) / MM + i, blocks_n - 1u)) * chunks * p.taps *
                 BLOCKS * 2u * MM;
}

// The weights of a step, all at once: their loads share a counter, so that to wait for the first is to wait
// for the last.
void load_w(uint chunk, uint step_) {
  uint column = step_ / BLOCKS, tap = column / KW * LINES * KW + column % KW;
  [[unroll]] for (uint t = 0u; t < LINES; t++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
      coopMatLoad(pairs[t][i], w,
          w_first[i] + ((chunk * p.taps + tap + t * KW) * BLOCKS + step_ % BLOCKS) * 2u * MM, 2,
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

// The first pixels under a step's first tap.
uint x_place(uint step_) {
  uint column = step_ / BLOCKS, line = subgroup_m / TW * STRIDE_H + column / KW * LINES * p.dilation_h;
  return (line * HALO_W + column % KW * p.dilation_w) * X_ROW + step_ % BLOCKS * (RUNS / BLOCKS);
}

void fetch(uint buffer_, uint at) {
  [[unroll]] for (uint j = 0u; j < RUNS_N; j++)
    coopMatLoad(right[buffer_][j], tile, at + j * MN * STRIDE_W * X_ROW, STRIDE_W * X_ROW,
        gl_CooperativeMatrixLayoutColumnMajor);
}

// A line of 16 channels of pixels comes from shared memory once: each tap multiplies it for another line of
// outputs. Meanwhile the next line comes. first: the buffer of the first one.
#define multiply_lines(first, at, next)                                                        \
  [[unroll]] for (uint l = 0u; l < IN_LINES; l++) {                                            \
    uint b = (first + l) % 2u;                                                                 \
    fetch(1u - b, l + 1u < IN_LINES ? at + (l + 1u) * HALO_W * X_ROW : next);                  \
    [[unroll]] for (uint t = 0u; t < LINES; t++) {                                             \
      uint below = l - t * DILATION_H, o = below / STRIDE_H * RUNS_N;                          \
      if (l >= t * DILATION_H && below % STRIDE_H == 0u && below / STRIDE_H < OUT_LINES)       \
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)                                     \
          [[unroll]] for (uint j = 0u; j < RUNS_N; j++)                                        \
            acc[i][o+j] = coopMatMulAdd(halves[t][i], right[b][j], acc[i][o+j]);               \
    }                                                                                          \
  }

// A step: a column of LINES taps, and 32 channels. The next one's weights are asked for as soon as there is
// room for them.
void multiply_step(uint step_, uint next_chunk, uint next_step) {
  uint at = x_place(step_);
  [[unroll]] for (uint t = 0u; t < LINES; t++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      halves_of_pairs(pairs[t][i], zeros[i], halves[t][i], others);
    }
  multiply_lines(0u, at, at + 2u)
  [[unroll]] for (uint t = 0u; t < LINES; t++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
      halves_of_pairs(pairs[t][i], zeros[i], others, halves[t][i]);
    }
  load_w(next_chunk, next_step);
  multiply_lines(IN_LINES, at + 2u, x_place(next_step))
}

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), tiles = p.tiles_h * p.tiles_w;
  uint index = workgroup_index(), place = index / tiles_n, chunks = ceil_div(p.group_channels, CH),
       steps = p.taps / LINES * BLOCKS;
  n = index % tiles_n * BN;
  group = place / (p.images * tiles);
  place -= group * p.images * tiles;
  image = place / tiles;
  tile_h = place / p.tiles_w % p.tiles_h * TH;
  tile_w = place % p.tiles_w * TW;
  begin_w(chunks);
  load_w(0u, 0u);
  float scale = of_channel(thread, SCALE), bias = of_channel(thread, BIAS);
  clear_acc();
  [[dont_unroll]] for (uint chunk = 0u; chunk < chunks; chunk++) {
    begin_chunk(chunk);
    [[dont_unroll]] for (uint first = 0u; first < ITEMS; first += BATCH) {
      load_items(first);
      if (first == 0u) {  // what is there is no longer needed
        if (chunk == 0u && !SIGNED) store_zeros();
        barrier();
      }
      store_items(first);
    }
    barrier();
    if (chunk == 0u && !SIGNED) load_zeros();
    fetch(0u, x_place(0u));
    [[dont_unroll]] for (uint step_ = 0u; step_ < steps; step_++) {
      bool end = step_ + 1u == steps;
      multiply_step(step_, end ? min(chunk + 1u, chunks - 1u) : chunk, end ? 0u : step_ + 1u);
    }
  }
  store_results(scale, bias);
}
