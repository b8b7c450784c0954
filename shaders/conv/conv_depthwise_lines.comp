// Depthwise convolution in int8 on packed dot products: OC = IC, kernels of 3x3 or 5x5, stride 1 or 2.
//
// A dot product needs four bytes of one channel, and a word holds four channels of a pixel: the words of four
// neighbours on an input line, their bytes transposed, are four taps of a line for each of four channels.
// They serve every output pixel that sees them. A line's weights are shifted to where an output pixel sees
// them; beside them stands the channel's zero point, which counts as zero.
//
// Memory    x, y: words of kPackedInt8_16C (BLOCKED 1) or vectors of kPackedInt8_4W4C, where the first column
//           under four output pixels is KERNEL / 2 before a vector; w: [kh][word of taps][c4] of four
//           channels x four taps; channels: gemm_output.glslh.
// Threads   an invocation computes ROWS x 4 pixels x 4 channels; its neighbours are what lies beside.
// Needs     no shared memory and no barrier.
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
layout(set = 0, binding = 0) readonly buffer X { Element x[]; };
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
layout(set = 0, binding = 3) buffer Y { Element y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "divided.glslh"
#include "dot4x8.glslh"
#include "pixels.glslh"
#include "transposed4x4.glslh"
#define OUT 1
#define SUMS_ARE_SMALL SMALL_SUMS
#define NO_STORE_BLOCK
#include "gemm_output.glslh"

// lines of results of an invocation: more of them take registers that its neighbours need
#define ROWS (KERNEL == 3 && STRIDE == 1 ? 4 : 2)
#define LINES ((ROWS - 1) * STRIDE + KERNEL)  // of the input
#define COLUMNS (3 * STRIDE + KERNEL)
#define WORDS ((COLUMNS + 3) / 4)             // of a line of one channel
#define TAP_WORDS ((KERNEL + 3) / 4)
#define ASIDE ((4 - KERNEL / 2) % 4)          // where the first column lies in its vector of kPackedInt8_4W4C

struct Place {
  uint plane, image, c4, oh, ow;  // plane: of images in kPackedInt8_16C
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

int column_inside[COLUMNS];  // all bits or none

// The words of a line of the input, four channels each.
void load_line(out int words[4 * WORDS], Place at, uint h) {
  bool inside = h < p.h;
  uint line = at.plane * p.h + (inside ? h : 0u), first = at.ow * STRIDE - p.pad_l;
#if BLOCKED
  [[unroll]] for (uint j = 0u; j < COLUMNS; j++)
    words[j] = x[4u * (line * p.w + min(first + j, p.w - 1u)) + at.c4 % 4u];
#else
  uint c4s = ceil_div(p.channels, 4u), vectors = ceil_div(p.w, 4u);
  [[unroll]] for (uint v = 0u; v < (ASIDE + COLUMNS + 3u) / 4u; v++) {
    uint column = min(uint(int(first - ASIDE) >> 2) + v, vectors - 1u);
    ivec4 vector = x[(line * vectors + column) * c4s + at.c4];
    [[unroll]] for (uint k = 0u; k < 4u; k++)
      if (4u * v + k >= ASIDE && 4u * v + k < ASIDE + COLUMNS) words[4u * v + k - ASIDE] = vector[k];
  }
#endif
  int outside = int8x4_broadcast(p.x_zero_point), line_inside = -int(inside);
  [[unroll]] for (uint j = 0u; j < COLUMNS; j++)
    words[j] = outside ^ ((outside ^ words[j]) & column_inside[j] & line_inside);
  [[unroll]] for (uint j = COLUMNS; j < 4u * WORDS; j++) words[j] = 0;
}

ivec4 taps[KERNEL * TAP_WORDS], w_zero_points;

// Four taps of line kh from tap `first` on, which may lie outside, of four channels.
ivec4 taps_from(int kh, int first) {
  int word = first < 0 ? -1 : first / 4, shift = 8 * (first - 4 * word);
  ivec4 low = word < 0 ? w_zero_points : taps[kh * TAP_WORDS + max(word, 0)];
  ivec4 high = word + 1 < TAP_WORDS ? taps[kh * TAP_WORDS + min(word + 1, TAP_WORDS - 1)] : w_zero_points;
  return shift == 0 ? low : ivec4(uvec4(low) >> shift) | (high << (32 - shift) % 32);
}

void main() {
  Place at = place_of(workgroup_index() * LOCAL_X + gl_LocalInvocationID.x);
  uint y_c4 = ceil_div(p.channels, 4u);
  if (at.c4 < y_c4 && at.image < p.images) {
    [[unroll]] for (uint j = 0u; j < COLUMNS; j++)
      column_inside[j] = -int(at.ow * STRIDE - p.pad_l + j < p.w);
    [[unroll]] for (uint k = 0u; k < KERNEL * TAP_WORDS; k++) taps[k] = w[k * y_c4 + at.c4];
    ivec4 w_zero_point = channel_block(at.c4, W_ZERO_POINT);
    [[unroll]] for (uint c = 0u; c < 4u; c++)
      w_zero_points[c] = ROW_SUMS ? int8x4_broadcast(w_zero_point[c]) : 0;
    ivec4 offset = channel_block(at.c4, OFFSET) + (SMALL_SUMS ? SMALL_SUM : 0), sums[ROWS * 4],
          x_sums[ROWS * 4];
    [[unroll]] for (int k = 0; k < ROWS * 4; k++) { sums[k] = offset; x_sums[k] = ivec4(0); }
    [[unroll]] for (int k = 0; k < LINES; k++) {
      int words[4 * WORDS];
      load_line(words, at, at.oh * STRIDE - p.pad_t + uint(k));
      [[unroll]] for (int word = 0; word < WORDS; word++) {
        ivec4 xs = transposed4x4(
            ivec4(words[4 * word], words[4 * word + 1], words[4 * word + 2], words[4 * word + 3]));
        [[unroll]] for (int row = 0; row < ROWS; row++) {
          int kh = k - row * STRIDE;
          if (kh < 0 || kh >= KERNEL) continue;
          [[unroll]] for (int column = 0; column < 4; column++) {
            int first = 4 * word - column * STRIDE;
            if (first <= -4 || first >= KERNEL) continue;
            ivec4 weights = taps_from(kh, first);
            [[unroll]] for (int c = 0; c < 4; c++) {
              XOperand operand = x_operand(xs[c]);
              sums[row * 4 + column][c] += dot4x8(operand, w_operand(weights[c]));
              if (ROW_SUMS) x_sums[row * 4 + column][c] += lane_sum(operand);
            }
          }
        }
      }
    }
    [[unroll]] for (uint row = 0u; row < ROWS; row++) {
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
        if (AFTER == AFTER_ADD && inside[k]) others[k] = y[first + 4u * k];
      results = after(results, others);
      [[unroll]] for (uint k = 0u; k < 4u; k++) if (inside[k]) y[first + 4u * k] = results[k];
#else
      uint vector = ((at.image * p.oh + oh) * ceil_div(p.ow, 4u) + at.ow / 4u) * y_c4 + at.c4;
      if (oh < p.oh) {
        if (AFTER == AFTER_ADD) others = y[vector];
        y[vector] = after(results, others);
      }
#endif
    }
  }
}
