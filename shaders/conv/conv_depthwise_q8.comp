// Depthwise convolution in int8 with exact int32 accumulation: each output channel reads one input channel
// (IC/groups = 1). Any number of outputs for an input channel, any kernel, stride, dilation and padding.
//
// A depthwise sum does not run over channels, so a dot product of a word's four channels does not help. In
// every dot form, this shader multiplies float lanes, whose sums of up to 1024 taps are exact.
//
// Memory    x: words of kPackedInt8_4W4C or kPackedInt8_16C (BLOCKED); w: words [kh][kw][c4], lane = output
//           channel; channels: gemm_output.glslh; y: as x, or float32 NCHW.
// Threads   a workgroup is LOCAL_X channel blocks x LOCAL_Y pixel blocks; an invocation computes 4 pixels x 4
//           channels.
// Needs     no shared memory and no barrier.
//
//   a line of y   | 0 0 0 0 | 1 1 1 1 | 2 2 2 2 | ..   LOCAL_Y blocks of pixels x LOCAL_X blocks of four
//                                                      channels: a workgroup; an invocation: one of each,
//   x under 1, three taps: 4 5 6 7 8 9                  16 sums in registers
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
layout(constant_id = 2) const bool ROW_SUMS = false;    // compute sums of x, for weight zero points
layout(constant_id = 3) const bool SLIDE = false;       // stride_w and dilation_w are 1
layout(constant_id = 4) const bool ONE_TO_ONE = false;  // OC = IC: a lane of x belongs to the same lane of y

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer W { int w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) buffer Y { int y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#define DOT 3
#define FLOAT_LANES
#define INVOCATIONS (LOCAL_X * LOCAL_Y)
#define LONG_SUMS 8
#define LONG_SUMS_IN_REGISTERS
#include "dot4x8.glslh"
#include "conv_block.glslh"
#include "long_sum.glslh"

const uint TAPS_PER_FLUSH = 4u * WORDS_PER_FLUSH;

// The input channels of four output channels: in one word or two, each `shift` bits from a word's lowest bit.
struct Inputs {
  uint first, second;  // channel blocks
  ivec4 from_low, shift;  // of each output channel; from_low: 1 if its input is in `first`
};

Inputs inputs_of(Block b) {
  Inputs s;
  s.first = ONE_TO_ONE ? b.c4 : 4u * b.c4 / p.group_oc / 4u;
  s.second = min(s.first + 1u, p.x_c4 - 1u);
  if (!ONE_TO_ONE) {
    [[unroll]] for (uint c = 0u; c < 4u; c++) {
      uint lane = min(4u * b.c4 + c, p.channels - 1u) / p.group_oc - 4u * s.first;
      s.from_low[c] = int(lane < 4u);
      s.shift[c] = int(8u * (lane % 4u));
    }
  }
  return s;
}

vec4 inputs_at(Line line, int column, Inputs s) {
  Int8x4 low = input_word(line, column, s.first);
  vec4 result = int8x4_unpack_float(low);
  if (!ONE_TO_ONE) {
    Int8x4 high = input_word(line, column, s.second);
    [[unroll]] for (int c = 0; c < 4; c++)
      result[c] = float(bitfieldExtract(s.from_low[c] == 1 ? low : high, s.shift[c], 8));
  }
  return result;
}

mat4 sums = mat4(0.0), x_sums = mat4(0.0);  // a column for each pixel

void flush_sums() {
  [[unroll]] for (int r = 0; r < 4; r++) {
    flush_sum(sums[r], r);
    flush_sum(x_sums[r], 4 + r);
  }
}

// Load the four pixels one column before the first tap; only the last three are used.
mat4 window_before(Line line, Block b, Inputs s) {
  mat4 window = mat4(0.0);
  if (SLIDE) {
    window[1] = inputs_at(line, b.w, s);
    window[2] = inputs_at(line, b.w + 1, s);
    window[3] = inputs_at(line, b.w + 2, s);
  }
  return window;
}

// Move the window by one column. SLIDE: neighbouring pixels and taps are neighbours in the input.
mat4 window_at(mat4 before, Line line, Block b, uint kw, Inputs s) {
  mat4 window;
  if (SLIDE) {
    window = mat4(before[1], before[2], before[3], inputs_at(line, b.w + int(kw) + 3, s));
  } else {
    window = mat4(inputs_at(line, column_at(b, 0u, kw), s), inputs_at(line, column_at(b, 1u, kw), s),
                  inputs_at(line, column_at(b, 2u, kw), s), inputs_at(line, column_at(b, 3u, kw), s));
  }
  return window;
}

void main() {
  Block b = this_block();
  Inputs s = inputs_of(b);
  uint y_c4 = ceil_div(p.channels, 4u), at = b.c4;
  for (uint kh = 0u; kh < p.kh; kh++) {
    Line line = input_line(b, kh);
    mat4 window = window_before(line, b, s);
    [[unroll]] for (uint kw = 0u; kw < taps_of_line(); kw++) {
      window = window_at(window, line, b, kw, s);
      vec4 ws = int8x4_unpack_float(w[at]);
      at += y_c4;
      [[unroll]] for (int r = 0; r < 4; r++) sums[r] += window[r] * ws;
      x_sums += window;  // removed by the compiler where ROW_SUMS is false
      if (LONG_K && kw % TAPS_PER_FLUSH == TAPS_PER_FLUSH - 1u) flush_sums();
    }
    if (LONG_K) flush_sums();
  }
  ivec4 offset = channel_block(b.c4, OFFSET), w_zero_point = channel_block(b.c4, W_ZERO_POINT), acc[4];
  [[unroll]] for (int r = 0; r < 4; r++) {
    acc[r] = total(sums[r], r) + offset;
    if (ROW_SUMS) acc[r] -= w_zero_point * total(x_sums[r], 4 + r);
  }
  store_pixels(b, acc);
}
