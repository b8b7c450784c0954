// Convolution of float16 images with int8 weights on float16 matrix units with float32 sums
// (VK_KHR_cooperative_matrix, subgroup scope), like conv2d_q8csw_tiles_coopmat.comp, except that weights are
// loaded directly from memory into matrices, as in gemm_q8csw_straight_coopmat.comp. Only pixels go through
// shared memory, and subgroups wait for each other only between two chunks of channels.
//
// Memory    x and y: NCHW of float16; lines of y are whole vectors of LINE pixels (eight, four or two), those
//           of x whole vectors of LINE or of four pixels, and a group's channels whole runs of eight. The
//           input pixels of all taps of a tile of TH x TW outputs are loaded into shared memory once for each
//           chunk of CH channels; a run of MN outputs along w is then MN rows of a matrix for every tap. A
//           pixel takes 2 CH + 16 bytes, which keeps neighbours in different banks. w: kPackedInt8_32K with k
//           = (chunk of CH channels, kw, block of 32 channels, kh, channel), so that each subgroup reads it
//           sequentially. WORDS: invocations assemble matrices in registers; the words of a matrix are stored
//           in the order of invocations, 16 bytes of each (vkq.probe.words). FLOAT_WEIGHTS: float16, two
//           matrices of 16 channels for each 32. channels: float_output.glslh.
// Threads   a workgroup of WGM x WGN subgroups computes TH x TW pixels x BN channels. An invocation loads
//           RUN channels of four pixels at a time, and stores LINE pixels of a channel.
// Steps     a step is 32 channels and a column of LINES taps, one below the other: each line of pixels read
//           from shared memory is multiplied by all of them.
// Needs     the matrix shape 16 x MN x 16 in the device's list, with sums of float32 and of float16, a
//           required subgroup size of SUBGROUP, and shared memory for the input pixels of a tile.
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

#define BM (TH * TW)
#include "sizes.glslh"
// Specialization constants, so that matrices are loaded with constant strides.
layout(constant_id = 3) const uint STRIDE_H = 1;
layout(constant_id = 4) const uint STRIDE_W = 1;
layout(constant_id = 5) const uint HALO_W = 18;  // input pixels under a line of the tile
layout(constant_id = 6) const uint HALO_H = 10;
layout(constant_id = 7) const uint KW = 3;
layout(constant_id = 8) const uint LINES = 3;  // lines of taps in a step: all, or one
layout(constant_id = 9) const uint DILATION_H = 1;
layout(constant_id = 17) const uint TIMES = 1;  // LINES * TIMES is the number of lines of taps
layout(constant_id = 18) const bool FLOAT_WEIGHTS = false;

layout(set = 0, binding = 0) readonly buffer X { X_VECTOR x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Y_VECTOR y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "divided.glslh"
#include "float16.glslh"
#define NO_STORE_ROW
#include "float_output.glslh"
#define DEPTH 1
#include "coopmat_half.glslh"

#define RUNS (CH / RUN)
#define X_ROW (RUNS + 1)
#define BLOCKS (CH / 32)  // blocks of 32 channels in a tap of a chunk
#define thread gl_LocalInvocationIndex
uint group, n;               // the workgroup's group and first output
uint image, tile_h, tile_w;  // position of the tile's first output
// Shared memory: pixels, later results; then the epilogue's scales, biases and zero points.
const uint HALO = HALO_H * ((HALO_W + 6) / 4 * 4) * X_ROW;
#define Y_ROW (BM / RUN + 1)
const uint PARAMETERS = HALO > BN * Y_ROW ? HALO : BN * Y_ROW;
shared uvec4 tile[PARAMETERS + 5 * BN / 8];
#include "half_pixels.glslh"
#include "half_runs_epilogue.glslh"

#define RUNS_N (TW / MN)  // matrices of pixels of a line
// A subgroup's lines of outputs, and the lines of pixels that the taps of a step read for them.
const uint OUT_LINES = SM / TW, IN_LINES = (OUT_LINES - 1) * STRIDE_H + (LINES - 1) * DILATION_H + 1;

MatrixW zeros[FRAGMENTS_N], halves[LINES][FRAGMENTS_N];
MatrixX right[2][RUNS_N];
uint w_first[FRAGMENTS_N];  // offset of the weights of a matrix's outputs, in uvec4
uint last_step;

#include "half_step.glslh"

void begin_w(uint chunks) {
  uint blocks_n = ceil_div(4u * p.n4, MM), matrices = chunks * p.taps * BLOCKS;
  last_step = matrices / LINES - 1u;
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)
    w_first[i] = (group * blocks_n + min((n + subgroup_n) / MM + i, blocks_n - 1u)) * matrices *
                     W_EACH * MATRIX_LINES + own_words;
#if WORDS
  biased = 0x64006400u + (p.m >> 31);  // keep the constant in a register
#endif
}

// Load all weights of a step at once: the loads share a counter, so waiting for the first load waits for the
// last.
void load_w(uint step_) {
  uint at = min(step_, last_step) * W_MATRICES * MATRIX_LINES;
  [[unroll]] for (uint t = 0u; t < W_MATRICES; t++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) load_pairs(t, i, w_first[i] + at + t * MATRIX_LINES);
}

void load_zeros() {
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) {
    if (!SIGNED) { load_points(zeros[i], 8u * PARAMETERS + 2u * POINTS + subgroup_n + i * MM); }
  }
}

void fetch(uint buffer_, uint at) {
  [[unroll]] for (uint j = 0u; j < RUNS_N; j++)
    coopMatLoad(right[buffer_][j], tile, at + j * MN * STRIDE_W * X_ROW, STRIDE_W * X_ROW,
        gl_CooperativeMatrixLayoutColumnMajor);
}

// Multiply lines of pixels by the taps. Each tap uses a line of pixels (16 channels) for a different line of
// outputs, so the line is read from shared memory once, while the previous line is multiplied. first: the
// buffer of the first line.
#define multiply_lines(first, at, next)                                                        \
  [[unroll]] for (uint l = 0u; l < IN_LINES; l++) {                                            \
    uint b = (first + l) % 2u;                                                                 \
    fetch(1u - b, l + 1u < IN_LINES ? at + (l + 1u) * WIDE * X_ROW : next);                    \
    [[unroll]] for (uint t = 0u; t < LINES; t++) {                                             \
      uint below = l - t * DILATION_H, o = below / STRIDE_H * RUNS_N;                          \
      if (l >= t * DILATION_H && below % STRIDE_H == 0u && below / STRIDE_H < OUT_LINES)       \
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++)                                     \
          [[unroll]] for (uint j = 0u; j < RUNS_N; j++)                                        \
            acc[i][o+j] = coopMatMulAdd(halves[t][i], right[b][j], acc[i][o+j]);               \
    }                                                                                          \
  }

// Compute a step, whose pixels begin at `at`, while the pixels of the next step, at `next`, are loaded. The
// next step's weights are requested as soon as registers are free.
void multiply_step(uint step_, uint at, uint next) {
  [[unroll]] for (uint t = 0u; t < LINES; t++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) { become_halves(t, i, 0u); }
  multiply_lines(0u, at, at + 2u)
  [[unroll]] for (uint t = 0u; t < LINES; t++)
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) { become_halves(t, i, 1u); }
  load_w(step_ + 1u);
  multiply_lines(IN_LINES, at + 2u, next)
}

// Compute all taps of a chunk. Blocks of channels of a pixel are contiguous.
void multiply_chunk(uint chunk) {
  const uint BLOCK = RUNS / BLOCKS;
  uint begin = x_shift + subgroup_m / TW * STRIDE_H * WIDE * X_ROW, down = p.dilation_h * WIDE * X_ROW,
       step_ = chunk * KW * BLOCKS * TIMES, at = begin;
  fetch(0u, at);
  [[dont_unroll]] for (uint column = 1u; column <= KW; column++) {
    uint right_ = column < KW ? begin + column * p.dilation_w * X_ROW : begin;
    [[unroll]] for (uint block = 0u; block < BLOCKS; block++) {
      uint top = at + block * BLOCK, after = block + 1u < BLOCKS ? top + BLOCK : right_;
      for (uint line = 0u; line < TIMES; line++, step_++)
        multiply_step(step_, top + line * down, line + 1u < TIMES ? top + (line + 1u) * down : after);
    }
    at = right_;
  }
}

void main() {
  uint tiles_n = ceil_div(4u * p.n4, BN), chunks = ceil_div(p.group_channels, CH), index = workgroup_index(),
       across = divided(index, p.tiles_n_multiplier, p.tiles_n_shift),
       down = divided(across, p.tiles_w_multiplier, p.tiles_w_shift);
  n = (index - across * tiles_n) * BN;
  tile_w = (across - down * p.tiles_w) * TW;
  image = divided(down, p.tiles_h_multiplier, p.tiles_h_shift);
  tile_h = (down - image * p.tiles_h) * TH;
  group = 0u;
  if (p.groups > 1u) {
    group = image / p.images;
    image -= group * p.images;
  }
  begin_w(chunks);
  load_w(0u);
  store_parameters();
  clear_acc();
  [[dont_unroll]] for (uint chunk = 0u; chunk < chunks; chunk++) {
    begin_chunk(chunk);
    [[dont_unroll]] for (uint first = 0u; first < ITEMS; first += BATCH) {
      load_items(first);
      if (first == 0u) barrier();  // the pixels are no longer needed
      store_items(first);
    }
    barrier();
    load_zeros();
    multiply_chunk(chunk);
  }
  store_results();
}
