// A 1x1 convolution and the depthwise convolution (OC = IC) that reads its result, in one dispatch: the first
// half of an inverted residual block. Both convolutions are int8 with exact int32 accumulation. The
// intermediate image stays in shared memory, with the bytes that a separate 1x1 convolution would give.
//
// Memory    x, y: vectors of kPackedInt8_4W4C, or of kPackedInt8_16C (BLOCKED 1; y is written in words). w1:
//           kPackedInt8_4N4K, with COOPMAT kPackedInt8_32K; w: [kh][word of taps][c4] of four channels x four
//           taps; channels1, channels: parameters of channels (gemm_output.glslh); with TABLE1, channels1
//           begins with a table. Shared memory holds the expanded pixels under a tile: [line][word][block of
//           channels]. A uvec4 holds four channels; each component holds four neighbouring pixels of one
//           channel.
// Threads   a workgroup computes TILE_H x TILE_W pixels x BLOCKS blocks of four channels. An invocation
//           computes four expanded pixels x four channels at a time, then four pixels x four channels of y.
// Needs     16 * LINES * WORDS * BLOCKS bytes of shared memory; with COOPMAT also room for pixels of x and
//           for sums (expand_coopmat.glslh).
//
//      x                      shared memory             y
//   +----------------+      +----------------+
//   | LINES lines of |  w1  | 4 pixels | ... |  taps  +-----------------+   expanded pixels outside the
//   | 4 * WORDS      | ---> | of a channel   | -----> | TILE_H x TILE_W |   image are the zero point, the
//   | pixels, all    |      |                |        +-----------------+   second convolution's padding
//   | channels       |      +----------------+
//   +----------------+
#version 450
#ifdef COOPMAT
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#endif
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const uint BLOCKS = 4;
layout(constant_id = 2) const bool ROW_SUMS = false;   // for the depthwise convolution
layout(constant_id = 3) const bool ROW_SUMS1 = false;  // for the 1x1 convolution
layout(constant_id = 4) const bool TABLE1 = false;
layout(constant_id = 5) const uint TILE_H = 8;
layout(constant_id = 6) const uint TILE_W = 8;  // whole blocks of four
layout(constant_id = 7) const uint KERNEL = 3;
layout(constant_id = 8) const uint STRIDE = 1;
layout(constant_id = 9) const uint PAD_L = 1;
layout(constant_id = 14) const bool SMALL_SUMS = false;  // accumulators of both convolutions are below 2^22

#ifdef COOPMAT
layout(constant_id = 24) const uint K16 = 2;        // runs of 16 channels of x, a multiple of 2
layout(constant_id = 25) const uint X_PIXELS = 64;  // maximum pixels of x under a tile; a multiple of MN
#include "coopmat_types.glslh"
#define Vector uvec4
#else
#define Vector ivec4
#endif

#ifdef TEXELS
layout(set = 0, binding = 0) uniform isamplerBuffer x;
layout(set = 0, binding = 1) uniform isamplerBuffer w1;
layout(set = 0, binding = 2) uniform isamplerBuffer channels1;
layout(set = 0, binding = 3) uniform isamplerBuffer w;
layout(set = 0, binding = 4) uniform isamplerBuffer channels;
#else
layout(set = 0, binding = 0) readonly buffer X { Vector x[]; };
layout(set = 0, binding = 1) readonly buffer W1 { Vector w1[]; };
layout(set = 0, binding = 2) readonly buffer Channels1 { ivec4 channels1[]; };
layout(set = 0, binding = 3) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 4) readonly buffer Channels { ivec4 channels[]; };
#endif
#if BLOCKED
layout(set = 0, binding = 5) writeonly buffer Y { int y[]; };
#else
layout(set = 0, binding = 5) writeonly buffer Y { ivec4 y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#include "byte_table.glslh"
#include "dot4x8.glslh"
#define OUT 1
#define SUMS_ARE_SMALL SMALL_SUMS
#define NO_STORE_BLOCK
#include "gemm_output.glslh"

const uint LEFT = (PAD_L + 3u) / 4u;    // words of the left halo
const uint ASIDE = 4u * LEFT - PAD_L;   // pixels in the first word that come before the first tap
const uint LINES = (TILE_H - 1u) * STRIDE + KERNEL;
const uint WORDS = (ASIDE + (TILE_W - 1u) * STRIDE + KERNEL + 3u) / 4u;
const uint TAP_WORDS = (KERNEL + 3u) / 4u;
const uint SEEN = (ASIDE + 3u * STRIDE + KERNEL + 3u) / 4u;  // input words of a line that four results read
#define MOST_SEEN 4
#define MOST_KERNEL 5
#define MOST_TAP_WORDS 2
#ifdef COOPMAT
shared uvec4 tile[LINES * WORDS * BLOCKS + X_PIXELS * (K16 + 1) + LOCAL_X / SUBGROUP * MN * (BLOCKS + 1)];
#else
shared uvec4 tile[LINES * WORDS * BLOCKS];
#endif

// c4s: number of blocks of four channels; first_c4: the workgroup's first block. image, first_oh, first_ow:
// the first result pixel of the workgroup.
uint c4s, first_c4, image, first_oh, first_ow;
int first_line, first_word;                     // first expanded pixel under the tile

void locate() {
  c4s = ceil_div(p.channels, 4u);
  uint groups = ceil_div(c4s, BLOCKS), tiles_w = ceil_div(p.ow, TILE_W), tiles_h = ceil_div(p.oh, TILE_H);
  uint at = workgroup_index() / groups, row = at / tiles_w;
  first_c4 = (workgroup_index() - at * groups) * BLOCKS;
  first_ow = (at - row * tiles_w) * TILE_W;
  image = row / tiles_h;
  first_oh = (row - image * tiles_h) * TILE_H;
  first_line = int(first_oh * STRIDE) - p.pad_t;
  first_word = int(first_ow * STRIDE / 4u) - int(LEFT);
}

// An invocation computes every SHARERS-th word of one block of channels.
const uint SHARERS = LOCAL_X / BLOCKS;
#define own_block (gl_LocalInvocationIndex % BLOCKS)
#define own_word (gl_LocalInvocationIndex / BLOCKS)
uint c4;
ivec4 offset1, zero_point1, offset, zero_point, taps[MOST_KERNEL * MOST_TAP_WORDS];
vec4 multiplier1;

void load_parameters() {
  c4 = min(first_c4 + own_block, c4s - 1u);
  uint at = (TABLE1 ? 16u : 0u) + 4u * c4;
  int small = SMALL_SUMS ? SMALL_SUM : 0;
  offset1 = LOAD(channels1, at) + small;
  zero_point1 = LOAD(channels1, at + 1u);
  multiplier1 = intBitsToFloat(LOAD(channels1, at + 2u));
  offset = channel_block(c4, OFFSET) + small;
  zero_point = channel_block(c4, W_ZERO_POINT);
  [[unroll]] for (uint kh = 0u; kh < MOST_KERNEL; kh++)
    [[unroll]] for (uint t = 0u; t < MOST_TAP_WORDS; t++)
      if (kh < KERNEL && t < TAP_WORDS)
        taps[kh * MOST_TAP_WORDS + t] = LOAD(w, (kh * TAP_WORDS + t) * c4s + c4);
}

// of[c]: the sums of four pixels for channel c; x: for each of these pixels, the sum of its numbers of x.
struct Sums { ivec4 of[4], x; };
Sums no_sums() { return Sums(ivec4[4](ivec4(0), ivec4(0), ivec4(0), ivec4(0)), ivec4(0)); }

BYTE_TABLE(through_table1, channels1)

// Requantize the sums of the four pixels from `column` on, and return a word of four pixels for each of four
// channels. Pixels right of the image get the padding value.
uvec4 expanded(Sums sums, uint column) {
  uint real = min(p.w - column, 4u);
  int padding = int8x4_broadcast(p.pad_value), inside = real == 4u ? -1 : (1 << (8u * real)) - 1;
  ivec4 words;
  [[unroll]] for (int c = 0; c < 4; c++) {
    ivec4 acc = sums.of[c] + offset1[c];
    if (ROW_SUMS1) acc -= zero_point1[c] * sums.x;
    words[c] = requantize4(acc, vec4(multiplier1[c]), p.y_zero1, p.y_min1, p.y_max1);
    if (TABLE1) words[c] = through_table1(words[c]);
    words[c] = (words[c] & inside) | (padding & ~inside);
  }
  return uvec4(words);
}

#ifdef COOPMAT
#include "expand_coopmat.glslh"
#else
#include "expand_dots.glslh"
#endif
#include "expand_filter.glslh"

void main() {
  locate();
  load_parameters();
  expand_tile();
  barrier();
  filter_tile();
}
