// Direct convolution in int8 with exact int32 accumulation: any kernel, stride, dilation, padding and groups.
//
// A group's channels need not begin with a word of four channels. The host stores weights of four output
// channels for all `span` input words that contain a channel of their groups; in the lanes of other groups,
// the weight is the zero point, which counts as zero. So no byte is shifted, and groups of any size use whole
// dot products.
//
// Memory    x: words of kPackedInt8_4W4C or kPackedInt8_16C (BLOCKED); w: blocks [kh][span][kw][c4] of 4
//           output channels x 4 lanes; channels: gemm_output.glslh; y: as x, or float32 NCHW.
// Threads   a workgroup is LOCAL_X channel blocks x LOCAL_Y pixel blocks; an invocation computes 4 pixels x 4
//           channels.
// Needs     no barrier; shared memory only for a long k in the float form.
//
//   a line of y   | 0 0 0 0 | 1 1 1 1 | 2 2 2 2 | ..   LOCAL_Y blocks of pixels x LOCAL_X blocks of four
//                                                      channels: a workgroup; an invocation: one of each,
//   x under 1, three taps: 4 5 6 7 8 9                  16 sums in registers
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#ifndef FLOAT_LANES
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
layout(constant_id = 2) const bool ROW_SUMS = false;
layout(constant_id = 3) const bool SLIDE = false;    // stride_w and dilation_w are 1
layout(constant_id = 4) const bool IN_TURN = false;  // one output channel at a time: fewer registers

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) buffer Y { int y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#define INVOCATIONS (LOCAL_X * LOCAL_Y)
#define LONG_SUMS 5
#define PHASED
#include "dot4x8.glslh"
#include "conv_block.glslh"
#include "long_sum.glslh"

const bool SUM_ROWS = ROW_SUMS || DOT == DOT_U8U8;
#define X_SUM 4  // index of the sums of x among the long sums
Sum4 sums[4] = {}, x_sums = Sum4(0);

void flush_sums() {
  [[unroll]] for (int r = 0; r < 4; r++) flush_sum(sums[r], r);
  flush_sum(x_sums, X_SUM);
}

struct Window { XOperand pixels[4]; };

XOperand operand_at(Line line, int column, uint c4) { return x_operand(input_word(line, column, c4)); }

// Load the four pixels one column before the first tap; only the last three are used.
Window window_before(Line line, Block b, uint c4) {
  Window window;
  window.pixels[0] = XOperand(0);
  window.pixels[1] = SLIDE ? operand_at(line, b.w, c4) : XOperand(0);
  window.pixels[2] = SLIDE ? operand_at(line, b.w + 1, c4) : XOperand(0);
  window.pixels[3] = SLIDE ? operand_at(line, b.w + 2, c4) : XOperand(0);
  return window;
}

// Move the window by one column. SLIDE: neighbouring pixels and taps are neighbours in the input.
Window window_at(Window before, Line line, Block b, uint kw, uint c4) {
  Window window;
  if (SLIDE) {
    window.pixels[0] = before.pixels[1];
    window.pixels[1] = before.pixels[2];
    window.pixels[2] = before.pixels[3];
    window.pixels[3] = operand_at(line, b.w + int(kw) + 3, c4);
  } else {
    window.pixels[0] = operand_at(line, column_at(b, 0u, kw), c4);
    window.pixels[1] = operand_at(line, column_at(b, 1u, kw), c4);
    window.pixels[2] = operand_at(line, column_at(b, 2u, kw), c4);
    window.pixels[3] = operand_at(line, column_at(b, 3u, kw), c4);
  }
  return window;
}

void multiply_tap(Window window, ivec4 words) {
  if (IN_TURN) {
    [[dont_unroll]] for (int c = 0; c < 4; c++) {  // rotates the channels
      WOperand ws = w_operand(words.x);
      [[unroll]] for (int r = 0; r < 4; r++)
        sums[r] = Sum4(sums[r].yzw, sums[r].x + dot4x8(window.pixels[r], ws));
      words = words.yzwx;
    }
  } else {
    WOperand ws[4];
    [[unroll]] for (int c = 0; c < 4; c++) ws[c] = w_operand(words[c]);
    [[unroll]] for (int r = 0; r < 4; r++)
      [[unroll]] for (int c = 0; c < 4; c++) sums[r][c] += dot4x8(window.pixels[r], ws[c]);
  }
  // The compiler removes this where SUM_ROWS is false.
  [[unroll]] for (int r = 0; r < 4; r++) x_sums[r] += lane_sum(window.pixels[r]);
}

void main() {
  Block b = this_block();
  uint y_c4 = ceil_div(p.channels, 4u), first_word = 4u * b.c4 / p.group_oc * p.group_ic / 4u;
  uint at = sweep.first_weight + b.c4;
  uint pending = 0u;
  clear_long_sums();
  for (uint kh = 0u; kh < sweep.kh; kh++) {
    Line line = input_line(b, kh);
    for (uint s = 0u; s < p.span; s++) {
      uint word = min(first_word + s, p.x_c4 - 1u);  // words beyond the last have weights that count as zero
      Window window = window_before(line, b, word);
      for (uint kw = 0u; kw < taps_of_line(); kw++) {
        window = window_at(window, line, b, kw, word);
        multiply_tap(window, w[at]);
        at += y_c4;
        if (LONG_K && ++pending == WORDS_PER_FLUSH) { flush_sums(); pending = 0u; }
      }
    }
  }
  if (LONG_K) flush_sums();
  ivec4 acc[4], row_sums = SUM_ROWS ? total(x_sums, X_SUM) : ivec4(0);
  [[unroll]] for (int r = 0; r < 4; r++)
    acc[r] = corrected(total(sums[r], r), row_sums[r], sweep.first_block + b.c4);
  store_pixels(b, acc);
}
