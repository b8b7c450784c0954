// A 1x1 convolution and the depthwise convolution that reads it, in one dispatch: the first half of an
// inverted residual block. Both are int8 with exact int32 accumulation; in the second, OC = IC. The
// intermediate bytes are those that two dispatches would write; they stay in shared memory.
//
// Memory    x, y: vectors of kPackedInt8_4W4C, or of kPackedInt8_16C (BLOCKED 1; y in words). w1:
//           kPackedInt8_4N4K, with COOPMAT kPackedInt8_32K; w: [kh][word of taps][c4] of four channels x four
//           taps; channels1, channels: gemm_output.glslh, in channels1 after a table where TABLE1. Shared
//           memory holds the expanded pixels under a tile: [line][word][block of channels]. A uvec4 holds
//           four channels; each component holds four neighbouring pixels of one channel.
// Threads   a workgroup computes TILE_H x TILE_W pixels x BLOCKS blocks of four channels. An invocation
//           expands four pixels x four channels at a time, then computes as many results at a time.
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
//
// PROJECT: a depthwise convolution and the 1x1 convolution that reads it, the second half of the block. `w`
// and `channels` belong to the 1x1 convolution, w2 and channels2 to the depthwise convolution. A workgroup
// computes TILE_H x TILE_W pixels x OUTPUTS channels. It filters BLOCKS blocks of channels at a time, keeps
// their results in shared memory, and adds their products to sums in registers. It computes no intermediate
// result twice if y has at most OUTPUTS channels. The includes define
//   OUTPUTS, RESULTS, SCRATCH      the outputs of a tile; uvec4 of a block's results, and of sums at the end
//   void begin_totals(), store_totals()   clear the sums; convert and store them
//   void keep_parameters()         store parameters of the outputs to shared memory, before the last barrier
//   void load_weights()            load weights that can be loaded before the results are known
//   void begin_results()           clear results of channels that do not exist
//   void keep_words(uint word, ivec4 results)   store the results of four pixels to shared memory
//   void project_block()           multiply the results of a block of channels
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
layout(constant_id = 2) const bool ROW_SUMS = false;   // for the last convolution
layout(constant_id = 3) const bool ROW_SUMS1 = false;  // for the 1x1 convolution before the depthwise one
layout(constant_id = 4) const bool TABLE1 = false;
layout(constant_id = 5) const uint TILE_H = 8;
layout(constant_id = 6) const uint TILE_W = 8;  // whole blocks of four
layout(constant_id = 7) const uint KERNEL = 3;
layout(constant_id = 8) const uint STRIDE = 1;
layout(constant_id = 9) const uint PAD_L = 1;
layout(constant_id = 14) const bool SMALL_SUMS = false;  // accumulators of both are below 2^22

#ifdef COOPMAT
#include "coopmat_types.glslh"
#endif
#if PROJECT
#include "project_operands.glslh"
#else
#include "expand_operands.glslh"
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
// pixels in the first word of a line that come before the first tap
#if PROJECT && BLOCKED
const uint ASIDE = 0u;
#else
const uint ASIDE = 4u * LEFT - PAD_L;
#endif
const uint LINES = (TILE_H - 1u) * STRIDE + KERNEL;
const uint WORDS = (ASIDE + (TILE_W - 1u) * STRIDE + KERNEL + 3u) / 4u;
const uint TAP_WORDS = (KERNEL + 3u) / 4u;
const uint SEEN = (ASIDE + 3u * STRIDE + KERNEL + 3u) / 4u;  // input words of a line that four results read
#define MOST_SEEN 4
#define MOST_KERNEL 5
#define MOST_TAP_WORDS 2
#if PROJECT
shared uvec4 tile[STAGES * RESULTS > SCRATCH ? STAGES * RESULTS : SCRATCH];
#elif defined(COOPMAT)
shared uvec4 tile[LINES * WORDS * BLOCKS + X_PIXELS * (K16 + 1) + LOCAL_X / SUBGROUP * MN * (BLOCKS + 1)];
#else
shared uvec4 tile[LINES * WORDS * BLOCKS];
#endif

// c4s: words of channels (four channels each); first_c4: the first word that is being computed. image,
// first_oh, first_ow: the first result pixel of the workgroup.
uint c4s, first_c4, image, first_oh, first_ow;
int first_line, first_word;                     // first pixel under the tile
#if PROJECT
uint first_output, stage = 0u;                  // stage: offset of the results of a block of channels
#endif

void locate() {
  c4s = ceil_div(p.channels, 4u);
#if PROJECT
  uint groups = ceil_div(p.outputs, OUTPUTS);
#else
  uint groups = ceil_div(c4s, BLOCKS);
#endif
  uint tiles_w = ceil_div(p.ow, TILE_W), tiles_h = ceil_div(p.oh, TILE_H);
  uint at = workgroup_index() / groups, row = at / tiles_w, nth = workgroup_index() - at * groups;
#if PROJECT
  first_output = nth * OUTPUTS;
#else
  first_c4 = nth * BLOCKS;
#endif
  first_ow = (at - row * tiles_w) * TILE_W;
  image = row / tiles_h;
  first_oh = (row - image * tiles_h) * TILE_H;
  first_line = int(first_oh * STRIDE) - p.pad_t;
  first_word = int(first_ow * STRIDE / 4u) - int(LEFT);
}

// An invocation filters every SHARERS-th word of one block of channels. Invocations beyond the last block, or
// the last word, have none.
const uint SHARERS = LOCAL_X / BLOCKS;
#if PROJECT && defined(COOPMAT)  // neighbours load 16 channels of a pixel, and then of the next word
#define own_block (gl_LocalInvocationIndex / (4u * SHARERS) * 4u + gl_LocalInvocationIndex % 4u)
#define own_word (gl_LocalInvocationIndex / 4u % SHARERS)
#else
#define own_block (gl_LocalInvocationIndex % BLOCKS)
#define own_word (gl_LocalInvocationIndex / BLOCKS)
#endif
uint c4;
ivec4 offset, zero_point, taps[MOST_KERNEL * MOST_TAP_WORDS];
const int FIRST_SUM = SMALL_SUMS ? SMALL_SUM : 0;

void load_filter() {
  c4 = min(first_c4 + own_block, c4s - 1u);
  offset = filter_parameter(OFFSET) + FIRST_SUM;
  zero_point = filter_parameter(W_ZERO_POINT);
  [[unroll]] for (uint kh = 0u; kh < MOST_KERNEL; kh++)
    [[unroll]] for (uint t = 0u; t < MOST_TAP_WORDS; t++)
      if (kh < KERNEL && t < TAP_WORDS)
        taps[kh * MOST_TAP_WORDS + t] = taps_at((kh * TAP_WORDS + t) * c4s + c4);
}

#if PROJECT
#ifdef COOPMAT
#include "project_coopmat.glslh"
#else
#include "project_dots.glslh"
#endif
#include "project_words.glslh"
#else
#include "expand_words.glslh"
#ifdef COOPMAT
#include "expand_coopmat.glslh"
#else
#include "expand_dots.glslh"
#endif
#endif
#include "expand_filter.glslh"

void main() {
  locate();
#if PROJECT
  begin_totals();
  [[dont_unroll]] for (first_c4 = 0u; first_c4 < c4s; first_c4 += BLOCKS) {
    load_filter();
    load_weights();
    filter_tile();
    barrier();
    project_block();
    stage = RESULTS - stage;
  }
  keep_parameters();
  barrier();
  store_totals();
#else
  load_filter();
  load_parameters1();
  expand_tile();
  barrier();
  filter_tile();
#endif
}
