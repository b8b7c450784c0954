// A depthwise convolution (OC = IC, 3x3 or 5x5, stride 1 or 2) and the 1x1 convolution of its int8 results in
// one dispatch. The results of the first are requantized, given their table, and go to shared memory; there
// they are the left operand of the second, with the bytes that they have between two dispatches.
//
// Memory    x, y: words of kPackedInt8_4W4C or kPackedInt8_16C (BLOCKED); w1: [column][word of taps][c4] of
//           four channels x four lines (conv_depthwise_columns.comp); w: kPackedInt8_4N4K blocks [k4][n4];
//           channels1, channels: gemm_output.glslh, before the first a table where TABLE1.
// Threads   a workgroup computes tile_m4 blocks of four pixels x tile_n4 blocks of four channels of y. First
//           it makes all channels of its pixels, an invocation a block of 4 pixels x 4 channels at a time;
//           then each sums a block of y over every split-th word of k, and the first of split ends it.
// Needs     TILE vectors of shared memory: tile_m4 * k4, or what the others of split leave for the first.
//
//   x: a column of KERNEL words,    shared: k4 blocks x tile_m4        w: k4 x tile_n4
//   transposed: taps of a channel   | 0 0 0 | 1 1 1 | .. (tile_m4)     y: tile_m4 x tile_n4 blocks of 4 x 4
#version 450
#extension GL_EXT_control_flow_attributes : require
#ifndef FLOAT_LANES
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(constant_id = 1) const bool ROW_SUMS1 = false;  // weight zero points of the first need the sums of x
layout(constant_id = 2) const bool ROW_SUMS = false;   // and of the second
layout(constant_id = 3) const bool BLOCKED = false;
layout(constant_id = 4) const uint TILE = 512;
layout(constant_id = 5) const bool TABLE1 = false;
layout(constant_id = 6) const int KERNEL = 3;
layout(constant_id = 7) const int STRIDE = 1;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer W1 { ivec4 w1[]; };
layout(set = 0, binding = 2) readonly buffer Channels1 { ivec4 channels1[]; };
layout(set = 0, binding = 3) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 4) readonly buffer Channels { ivec4 channels[]; };
layout(set = 0, binding = 5) buffer Y { int y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "dot4x8.glslh"
#include "transposed4x4.glslh"
#define NO_STORE_BLOCK
#include "gemm_output.glslh"

const bool SUM_ROWS1 = ROW_SUMS1 || DOT == DOT_U8U8, SUM_ROWS = ROW_SUMS || DOT == DOT_U8U8;
#define WORDS ((KERNEL + 3) / 4)           // of a column of one channel
#define COLUMNS (3 * STRIDE + KERNEL)      // of the input, under four pixels
#define PART (SUM_ROWS ? 5u : 4u)          // vectors of a block's sums
#ifdef FLOAT_LANES
const int X_BITS = 0;
#define x_staged(word) int8x4_unpack_float(word)
#else
const int X_BITS = X_UNSIGNED ? SIGN_BITS : 0;
#define x_staged(word) (word)
#endif

// [k4][m4] of four pixels, each a word of four channels; then [part][m4 and n4][.] of sums
shared ivec4 tile[TILE];

struct Pixels { uint line, w; };  // of all images; the first of four

Pixels pixels_of(uint m4) {
  uint blocks = ceil_div(p.ow, 4u), line = m4 / blocks;
  return Pixels(line, 4u * (m4 - line * blocks));
}

// The word of four channels of a pixel, `lines` of all images.
uint image_word(uint line, uint column, uint c4, uint c4s, uint lines, uint width) {
  return BLOCKED ? 4u * ((c4 / 4u * lines + line) * width + column) + c4 % 4u
                 : 4u * ((line * ceil_div(width, 4u) + column / 4u) * c4s + c4) + column % 4u;
}

int input_word(uint image, uint line, uint column, uint c4) {
  bool inside = line < p.h && column < p.w;
  uint at = inside ? image_word(image * p.h + line, column, c4, p.k4, p.images * p.h, p.w) : 0u;
  int word = x[at];
  return inside ? word : int8x4_broadcast(p.x_zero_point);
}

// Four channels' words of taps of one column.
ivec4 column_words(uint image, uint first, int word, uint column, uint c4) {
  ivec4 lines = ivec4(0);
  [[unroll]] for (int i = 0; i < 4; i++)
    if (4 * word + i < KERNEL) lines[i] = input_word(image, first + uint(4 * word + i), column, c4);
  return transposed4x4(lines);
}

// Four words of what lies between through the first convolution's table.
ivec4 through_table(ivec4 words) {
  ivec4 q = words ^ SIGN_BITS, found = ivec4(0);
  [[dont_unroll]] for (int shift = 0; shift < 32; shift += 8) {
    [[unroll]] for (int r = 0; r < 4; r++) {
      int i = q[r] >> shift & 255;
      found[r] |= int8x4_lane(channels1[i >> 4][i >> 2 & 3], uint(i & 3)) << shift & 255 << shift;
    }
  }
  return found;
}

// Four pixels of four channels of what lies between.
ivec4 depthwise(uint m4, uint c4) {
  Pixels at = pixels_of(m4);
  uint image = at.line / p.oh, left = at.w * STRIDE - p.pad_l;
  uint top = (at.line - image * p.oh) * STRIDE - p.pad_t;
  Sum4 sums[4], x_sums[4];
  [[unroll]] for (int r = 0; r < 4; r++) sums[r] = x_sums[r] = Sum4(0);
  [[dont_unroll]] for (int word = 0; word < WORDS; word++) {
    [[unroll]] for (int j = 0; j < COLUMNS; j++) {
      ivec4 taps = column_words(image, top, word, left + uint(j), c4);
      [[unroll]] for (int r = 0; r < 4; r++) {
        int kw = j - r * STRIDE;
        if (kw >= 0 && kw < KERNEL) {
          ivec4 weights = w1[uint(kw * WORDS + word) * p.k4 + c4];
          [[unroll]] for (int c = 0; c < 4; c++) {
            XOperand xs = x_operand(taps[c]);
            sums[r][c] += dot4x8(xs, w_operand(weights[c]));
            if (SUM_ROWS1) x_sums[r][c] += lane_sum(xs);
          }
        }
      }
    }
  }
  uint first = (TABLE1 ? 16u : 0u) + 4u * c4;
  ivec4 offset = channels1[first + OFFSET], w_zero_point = channels1[first + W_ZERO_POINT], words;
  vec4 multiplier = intBitsToFloat(channels1[first + MULTIPLIER]);
  [[unroll]] for (int r = 0; r < 4; r++) {
    ivec4 acc = ivec4(sums[r]) + offset;
    if (SUM_ROWS1) acc -= w_zero_point * ivec4(x_sums[r]);
    words[r] = requantize4(acc, multiplier, p.zero_point1, p.min1, p.max1);
  }
  if (TABLE1) words = through_table(words);
  return words;
}

// All channels of the workgroup's pixels, in an order in which neighbours read what lies side by side.
void fill_tile(uint m4, uint most) {
  uint q4 = ceil_div(p.k4, 4u) * 4u, all = p.tile_m4 * (BLOCKED ? q4 : p.k4);
  for (uint i = gl_LocalInvocationIndex; i < all; i += LOCAL_X) {
    uint m = BLOCKED ? i / 4u % p.tile_m4 : i / p.k4;
    uint c4 = BLOCKED ? i / (4u * p.tile_m4) * 4u + i % 4u : i - m * p.k4;
    if (c4 < p.k4) tile[c4 * p.tile_m4 + m] = depthwise(min(m4 + m, most - 1u), c4) ^ X_BITS;
  }
}

void store_words(uint m4, uint c4, ivec4 words) {
  Pixels at = pixels_of(m4);
  uint lines = p.images * p.oh, place[4];
  ivec4 others = ivec4(0);
  [[unroll]] for (uint r = 0u; r < 4u; r++) {
    uint column = BLOCKED ? min(at.w + r, p.ow - 1u) : at.w + r;  // in blocks a line ends with padding
    place[r] = image_word(at.line, column, c4, p.n4, lines, p.ow);
    if (AFTER == AFTER_ADD) others[r] = y[place[r]];
  }
  words = after(words, others);
  [[unroll]] for (uint r = 0u; r < 4u; r++)
    if (!BLOCKED || at.w + r < p.ow) y[place[r]] = words[r];
}

void main() {
  uint most = p.images * p.oh * ceil_div(p.ow, 4u), tiles_n = ceil_div(p.n4, p.tile_n4);
  uint tile_m = workgroup_index() / tiles_n, first_n = (workgroup_index() - tile_m * tiles_n) * p.tile_n4;
  fill_tile(tile_m * p.tile_m4, most);
  barrier();
  uint blocks = p.tile_m4 * p.tile_n4, part = gl_LocalInvocationIndex / blocks;
  uint block = gl_LocalInvocationIndex - part * blocks;
  uint m = block / p.tile_n4, m4 = tile_m * p.tile_m4 + m;
  uint column = first_n + block - m * p.tile_n4, n = min(column, p.n4 - 1u);
  Sum4 sums[4], x_sums = Sum4(0);
  [[unroll]] for (int r = 0; r < 4; r++) sums[r] = Sum4(0);
  for (uint k = part; k < p.k4 && part < p.split; k += p.split) {
    ivec4 words = tile[k * p.tile_m4 + m], weights = w[k * p.n4 + n];
    [[unroll]] for (int r = 0; r < 4; r++) {
      XOperand xs = x_staged(words[r]);
      [[unroll]] for (int c = 0; c < 4; c++) sums[r][c] += dot4x8(xs, w_operand(weights[c]));
      if (SUM_ROWS) x_sums[r] += lane_sum(xs);
    }
  }
  ivec4 whole[4], row_sums = ivec4(x_sums);
  [[unroll]] for (int r = 0; r < 4; r++) whole[r] = ivec4(sums[r]);
  barrier();  // nobody reads the first convolution's results any more
  if (part > 0u && part < p.split) {
    uint at = PART * ((part - 1u) * blocks + block);
    [[unroll]] for (uint r = 0u; r < 4u; r++) tile[at + r] = whole[r];
    if (SUM_ROWS) tile[at + 4u] = row_sums;
  }
  barrier();
  for (uint i = 0u; i + 1u < p.split && part == 0u; i++) {
    uint at = PART * (i * blocks + block);
    [[unroll]] for (uint r = 0u; r < 4u; r++) whole[r] += tile[at + r];
    if (SUM_ROWS) row_sums += tile[at + 4u];
  }
  if (part == 0u && m4 < most && column < p.n4) {
    ivec4 words;
    [[unroll]] for (uint r = 0u; r < 4u; r++) words[r] = output_word(corrected(whole[r], row_sums[r], n), n);
    store_words(m4, n, words);
  }
}
