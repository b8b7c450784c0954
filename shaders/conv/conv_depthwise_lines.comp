// Depthwise convolution in int8 on packed dot products: OC = IC, kernels of 3x3 or 5x5, stride 1 or 2.
//
// A dot product needs four bytes of one channel, but a word holds four channels of a pixel. So four words, of
// four neighbours on an input line, are transposed: each then holds four input pixels of that line for one
// channel. They serve every output pixel that reads them, shifted to the pixel's first tap. A line's weights
// are padded with the channel's zero point, which counts as zero.
//
// Memory    x, y: words of kPackedInt8_16C (BLOCKED 1) or vectors of kPackedInt8_4W4C, where the first input
//           column of four output pixels is KERNEL / 2 before a vector; w: [kh][word of taps][c4] of four
//           channels x four taps; channels: gemm_output.glslh.
// Threads   an invocation computes ROWS x 4 pixels x 4 channels; neighbours compute neighbouring pixels.
// Needs     no shared memory and no barrier.
//
//   y: ROWS lines x 4 pixels   | 0 0 0 0 | 1 1 1 1 | ..    which invocation, each with 4 channels
//                              | 0 0 0 0 | 1 1 1 1 | ..    x: LINES lines of WORDS words of four taps
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 2) const bool ROW_SUMS = false;
layout(constant_id = 3) const bool SMALL_SUMS = false;  // accumulators are below 2^22

#if BLOCKED
#define Element int
#else
#define Element ivec4
#endif
#ifdef TEXELS
layout(set = 0, binding = 0) uniform isamplerBuffer x;
layout(set = 0, binding = 1) uniform isamplerBuffer w;
layout(set = 0, binding = 2) uniform isamplerBuffer channels;
#else
layout(set = 0, binding = 0) readonly buffer X { Element x[]; };
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#endif
layout(set = 0, binding = 3) buffer Y { Element y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "divided.glslh"
#include "dot4x8.glslh"
#include "pixels.glslh"
#include "texels.glslh"
#include "transposed4x4.glslh"
#define OUT 1
#define SUMS_ARE_SMALL SMALL_SUMS
#define NO_STORE_BLOCK
#include "gemm_output.glslh"

#define LINES ((ROWS - 1) * STRIDE + KERNEL)  // input lines that the output lines read
#define COLUMNS (3 * STRIDE + KERNEL)
#define WORDS ((COLUMNS + 3) / 4)             // words of a line of one channel
#define TAP_WORDS ((KERNEL + 3) / 4)
#define ASIDE ((4 - KERNEL / 2) % 4)  // position of the first column in its vector of kPackedInt8_4W4C

struct Place {
  uint plane, image, c4, oh, ow;  // plane: offset of the block's images, in kPackedInt8_16C
};

Place place_of(uint i) {
  Place at;
  uint row_groups = ceil_div(p.oh, ROWS), column_groups = ceil_div(p.ow, 4u);
#if BLOCKED
  uint run = i / 4u, line = divided(run, p.line_multiplier, p.line_shift);
  at.plane = divided(line, p.plane_multiplier, p.plane_shift);
  uint block = divided(at.plane, p.block_multiplier, p.block_shift);
  at.image = at.plane - block * p.images;
  at.c4 = 4u * block + i % 4u;
  at.ow = 4u * (run - line * column_groups);
  at.oh = ROWS * (line - at.plane * row_groups);
#else
  uint c4s = ceil_div(p.channels, 4u), run = divided(i, p.block_multiplier, p.block_shift);
  uint line = divided(run, p.line_multiplier, p.line_shift);
  at.image = at.plane = divided(line, p.plane_multiplier, p.plane_shift);
  at.c4 = i - run * c4s;
  at.ow = 4u * (run - line * column_groups);
  at.oh = ROWS * (line - at.image * row_groups);
#endif
  return at;
}

#if BLOCKED
#define LOADS COLUMNS
#else
#define LOADS ((ASIDE + COLUMNS + 3) / 4)
#endif
bool column_inside[COLUMNS];
uint places[LOADS];  // offsets from the first element of a line

void find_columns(Place at) {
  uint first = at.ow * STRIDE - p.pad_l;
  [[unroll]] for (uint j = 0u; j < COLUMNS; j++) column_inside[j] = first + j < p.w;
#if BLOCKED
  [[unroll]] for (uint j = 0u; j < LOADS; j++) places[j] = 4u * min(first + j, p.w - 1u) + at.c4 % 4u;
#else
  uint c4s = ceil_div(p.channels, 4u), last = ceil_div(p.w, 4u) - 1u;
  [[unroll]] for (uint v = 0u; v < LOADS; v++)
    places[v] = min(uint(int(first - ASIDE) >> 2) + v, last) * c4s + at.c4;
#endif
}

// Load the words of an input line, four channels each.
void load_line(out int words[4 * WORDS], Place at, uint h) {
  bool inside = h < p.h;
  uint line = at.plane * p.h + (inside ? h : 0u);
#if BLOCKED
  [[unroll]] for (uint j = 0u; j < COLUMNS; j++) words[j] = x[4u * p.w * line + places[j]];
#else
  uint first = line * ceil_div(p.w, 4u) * ceil_div(p.channels, 4u);
  [[unroll]] for (uint v = 0u; v < LOADS; v++) {
    ivec4 vector = LOAD(x, first + places[v]);
    [[unroll]] for (uint k = 0u; k < 4u; k++)
      if (4u * v + k >= ASIDE && 4u * v + k < ASIDE + COLUMNS) words[4u * v + k - ASIDE] = vector[k];
  }
#endif
  int outside = int8x4_broadcast(p.x_zero_point);
  [[unroll]] for (uint j = 0u; j < COLUMNS; j++) words[j] = inside && column_inside[j] ? words[j] : outside;
  [[unroll]] for (uint j = COLUMNS; j < 4u * WORDS; j++) words[j] = 0;
}

ivec4 taps[KERNEL * TAP_WORDS], sums[ROWS * 4], x_sums[ROWS * 4];

// Return a word for each of four channels: the pixels under taps 4 * `t` to 4 * `t` + 3 of pixel `column`.
ivec4 window(ivec4 xs[WORDS], int column, int t) {
  int first = column * STRIDE + 4 * t, word = first / 4, shift = 8 * (first % 4);
  if (shift == 0) return xs[word];
  uvec4 low = uvec4(xs[word]) >> shift;
  if (first % 4 + min(KERNEL - 4 * t, 4) <= 4 || word + 1 == WORDS) return ivec4(low);
  return ivec4(low) | (xs[min(word + 1, WORDS - 1)] << (32 - shift));
}

void store_row(uint row, Place at, uint y_c4, ivec4 w_zero_point) {
  uint oh = at.oh + row;
  bool inside[4];
  ivec4 results, others = ivec4(0);
  [[unroll]] for (uint k = 0u; k < 4u; k++) {
    ivec4 acc = sums[row * 4 + k];
    if (ROW_SUMS) acc -= w_zero_point * x_sums[row * 4 + k];
    results[k] = output_word(acc, at.c4);
    inside[k] = oh < p.oh && at.ow + k < p.ow;
  }
#if BLOCKED
  uint first = 4u * ((at.plane * p.oh + oh) * p.ow + at.ow) + at.c4 % 4u;
  [[unroll]] for (uint k = 0u; k < 4u; k++)
    if (HAS_SUM && inside[k]) others[k] = y[first + 4u * k];
  results = after(results, others);
  [[unroll]] for (uint k = 0u; k < 4u; k++) if (inside[k]) y[first + 4u * k] = results[k];
#else
  uint vector = ((at.image * p.oh + oh) * ceil_div(p.ow, 4u) + at.ow / 4u) * y_c4 + at.c4;
  if (oh < p.oh) {
    if (HAS_SUM) others = y[vector];
    y[vector] = after(results, others);
  }
#endif
}

// Multiply input line k (counted from the first output line's first) by the taps that read it.
void multiply_line(int k, ivec4 xs[WORDS], ivec4 offset) {
  [[unroll]] for (int column = 0; column < 4; column++) {
    [[unroll]] for (int t = 0; t < TAP_WORDS; t++) {
      ivec4 seen = window(xs, column, t);
      [[unroll]] for (int row = 0; row < ROWS; row++) {
        int kh = k - row * STRIDE, i = row * 4 + column;
        if (kh < 0 || kh >= KERNEL) continue;
        if (kh == 0 && t == 0) { sums[i] = offset; x_sums[i] = ivec4(0); }
        [[unroll]] for (int c = 0; c < 4; c++) {
          XOperand operand = x_operand(seen[c]);
          sums[i][c] += dot4x8(operand, w_operand(taps[kh * TAP_WORDS + t][c]));
          if (ROW_SUMS) x_sums[i][c] += lane_sum(operand);
        }
      }
    }
  }
}

void main() {
  Place at = place_of(workgroup_index() * LOCAL_X + gl_LocalInvocationID.x);
  uint y_c4 = ceil_div(p.channels, 4u);
  if (at.c4 < y_c4 && at.image < p.images) {
    find_columns(at);
    [[unroll]] for (uint k = 0u; k < KERNEL * TAP_WORDS; k++) taps[k] = LOAD(w, k * y_c4 + at.c4);
    ivec4 w_zero_point = channel_block(at.c4, W_ZERO_POINT);
    ivec4 offset = channel_block(at.c4, OFFSET) + (SMALL_SUMS ? SMALL_SUM : 0);
    [[unroll]] for (int k = 0; k < LINES; k++) {
      int words[4 * WORDS];
      load_line(words, at, at.oh * STRIDE - p.pad_t + uint(k));
      ivec4 xs[WORDS];
      [[unroll]] for (int i = 0; i < WORDS; i++)
        xs[i] = transposed4x4(ivec4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]));
      multiply_line(k, xs, offset);
      // Store after the last line that the result reads. 3x3 kernels leave registers for all results, and
      // storing them together is faster.
      if (KERNEL == 5 && k >= 4 && k % STRIDE == 0) store_row(uint((k - 4) / STRIDE), at, y_c4, w_zero_point);
    }
    [[unroll]] for (uint row = 0u; KERNEL == 3 && row < ROWS; row++) store_row(row, at, y_c4, w_zero_point);
  }
}
