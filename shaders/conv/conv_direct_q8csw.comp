// Direct convolution of float images with int8 weights: any kernel, stride, dilation, padding and groups,
// depthwise too. y = sum * scale + bias; the sum over (channel, kh, kw) is computed in this order. Many taps
// take several dispatches: each adds the channels and lines of taps in its push constants to the sums in y
// (CONTINUE), and the last one scales the sums (SCALED).
//
// Memory    x and y: NCHW, float32 or float16 (float_numbers.glslh); w: int8 words [channel of the group][kh]
//           [kw][c4], lane = output channel; or (FLOAT_WEIGHTS, scheme f32) float32 vectors in this order,
//           with each product and sum rounded, so that every device gives the same bits; channels: float32
//           parameters (float_output.glslh).
// Threads   an invocation computes PIXELS pixels of a line x CHANNELS output channels of one group. Pixel
//           (line, column) of this dispatch is output (line * out_stride_h + out_first_h, column *
//           out_stride_w + out_first_w): a transposed convolution is stride_h * stride_w convolutions, whose
//           padding may be negative.
// Needs     no shared memory and no barrier.
//   a line of y   | 0 .. 0 | 1 .. 1 | ..    a number: the invocation that has the pixel's CHANNELS sums
//   x for 1       PIXELS columns for each tap; with SLIDE, PIXELS + KW - 1 columns for all taps, read once
#version 450
#extension GL_EXT_control_flow_attributes : require
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 16;
layout(constant_id = 1) const uint LOCAL_Y = 4;
layout(constant_id = 3) const bool SLIDE = false;  // stride_w and dilation_w are 1
layout(constant_id = 7) const uint KW = 0;  // taps of a line, as a constant for unrolling; 0: read p.kw
layout(constant_id = 8) const uint KH = 0;  // lines of taps, as a constant; 0: read p.kh
#define taps_of_line() (KW > 0u ? KW : p.kw)
#include "part_of_taps.glslh"

#if FLOAT_WEIGHTS
#define WORDS vec4
#elif CHANNELS == 8
#define WORDS uvec2
#else
#define WORDS uint
#endif
#include "float_numbers.glslh"
layout(set = 0, binding = 0) readonly buffer X { Number x[]; };
layout(set = 0, binding = 1) readonly buffer W { WORDS w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
#if PARTS
layout(set = 0, binding = 3) buffer Y { Number y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#if !FLOAT_WEIGHTS
#include "float_weight.glslh"
#endif
#define NO_STORE_ROW
#include "float_output.glslh"

#define BLOCKS ((CHANNELS + 3) / 4)
#define word_blocks() ceil_div(p.channels, 4u * BLOCKS)  // words of one tap's weights
#if CHANNELS == 1
#define Lanes float
#else
#define Lanes vec4
#endif

uint channel;         // first output channel
uint x_at, y_at;      // x_at: index in x of the group's first channel; y_at: index in y of the first result
uint pixels;          // number of pixels to store; 0 beyond the edge, where the last block is computed again
int h0, w0;           // input pixel of the first tap of the first output pixel
Lanes zeros[BLOCKS];

void begin() {
  uint units = ceil_div(p.channels, CHANNELS), blocks = ceil_div(p.ow, PIXELS), all = p.lines * blocks;
  uint across = ceil_div(all, LOCAL_X), tile = workgroup_index(), row = tile / across;
  uint at = (tile - row * across) * LOCAL_X + gl_LocalInvocationID.x;
  uint unit = row * LOCAL_Y + gl_LocalInvocationID.y;
  channel = min(unit, units - 1u) * CHANNELS;
  uint line = min(at, all - 1u) / blocks, image = line / p.oh, oh = line - image * p.oh;
  uint ow = (min(at, all - 1u) - line * blocks) * PIXELS;
  pixels = at < all && unit < units ? p.ow - ow : 0u;
  x_at = (image * p.c + channel / p.group_oc * p.group_ic + first_channel()) * p.h * p.w;
  y_at = ((image * p.channels + channel) * p.out_h + oh * p.out_stride_h + p.out_first_h) * p.out_w +
      ow * p.out_stride_w + p.out_first_w;
  h0 = int(oh * p.stride_h) - p.pad_t;
  w0 = int(ow * p.stride_w) - p.pad_l;
  [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
    vec4 block = channel_block(min(channel / 4u + b, ceil_div(p.channels, 4u) - 1u), ZERO);
#if CHANNELS == 1
    zeros[b] = block[channel % 4u];
#else
    zeros[b] = block;
#endif
  }
}

// Load the weights of a tap, whose first word is w[at].
#if FLOAT_WEIGHTS
Lanes weights_of(uint at, uint b) {
#if CHANNELS == 1
  return w[at][channel % 4u];
#else
  return w[BLOCKS * at + b];
#endif
}
#else
Lanes weights_of(uint at, uint b) {
  WORDS words = w[at];
#if CHANNELS == 1
  return uintBitsToFloat(words >> 8u * (channel % 4u) & 0xffu ^ WEIGHT_BIAS) - zeros[b];
#else
  uint bytes = uvec2(words)[b];
  uvec4 lanes = uvec4(bytes, bytes >> 8, bytes >> 16, bytes >> 24) & 0xffu;
  return uintBitsToFloat(lanes ^ WEIGHT_BIAS) - zeros[b];
#endif
}
#endif

float input_at(bool inside, uint line, int column) {
  bool real = inside && uint(column) < p.w;
  float value = float_of(stored_at(x, real ? line + uint(column) : 0u));
  return real ? value : 0.0;
}

int column_at(uint pixel, uint kw) { return w0 + int(pixel * p.stride_w + kw * p.dilation_w); }

Lanes sums[PIXELS][BLOCKS];

#if FLOAT_WEIGHTS
Lanes added(Lanes sum, float value, Lanes weights) {
  precise Lanes product = value * weights, both = sum + product;
  return both;
}
#else
#define added(sum, value, weights) (sum + value * weights)
#endif

// Pixel i of the window, an array of vectors: some drivers keep a float array of this size in memory.
#define PIXEL(i) window[(i) / 4u][(i) % 4u]

// Multiply one line of taps of one input channel by its pixels; w[at] is the first word of these taps.
void multiply_line(bool inside, uint line, uint at) {
  uint blocks = word_blocks();
  vec4 window[PIXELS / 4];
  [[unroll]] for (uint i = 1u; i < PIXELS; i++)
    PIXEL(i) = SLIDE ? input_at(inside, line, w0 + int(i) - 1) : 0.0;
  [[unroll]] for (uint kw = 0u; kw < taps_of_line(); kw++) {
    [[unroll]] for (uint i = 0u; i + 1u < PIXELS; i++)
      PIXEL(i) = SLIDE ? PIXEL(i + 1u) : input_at(inside, line, column_at(i, kw));
    PIXEL(PIXELS - 1u) = input_at(inside, line, column_at(PIXELS - 1u, kw));
    [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
      Lanes weights = weights_of(at + kw * blocks, b);
      [[unroll]] for (uint i = 0u; i < PIXELS; i++) sums[i][b] = added(sums[i][b], PIXEL(i), weights);
    }
  }
}

uint place(uint pixel, uint c) { return y_at + c * p.out_h * p.out_w + pixel * p.out_stride_w; }

void store(uint pixel, uint c, float value) {
  if (pixel < pixels && channel + c < p.channels) store_number(y, place(pixel, c), value);
}

// Load unfinished sums from y: those of one channel (CHANNELS 1), or those of four channels.
Lanes sum_so_far(uint pixel, uint first) {
  vec4 sum = vec4(0.0);
#if PARTS
  [[unroll]] for (uint c = 0u; c < min(CHANNELS, 4u); c++)
    if (CONTINUE && pixel < pixels && channel + first + c < p.channels)
      sum[c] = float_of(stored_at(y, place(pixel, first + c)));
#endif
  return Lanes(sum);
}

vec4 finished(vec4 sums, uint c4) { return SCALED ? output_values(sums, c4) : sums; }

void main() {
  begin();
  [[unroll]] for (uint i = 0u; i < PIXELS; i++)
    [[unroll]] for (uint b = 0u; b < BLOCKS; b++) sums[i][b] = sum_so_far(i, 4u * b);
  uint c4 = ceil_div(p.channels, 4u), at = channel / (4u * BLOCKS);
  at += (first_channel() * p.kh + first_line()) * taps_of_line() * word_blocks();
  for (uint c = first_channel(); c < end_of_channels(); c++) {
    [[unroll]] for (uint kh = first_line(); kh < end_of_lines(); kh++) {
      uint h = uint(h0 + int(kh * p.dilation_h));
      multiply_line(h < p.h, x_at + h * p.w, at);
      at += taps_of_line() * word_blocks();
    }
    x_at += p.h * p.w;
  }
  [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
    uint block = min(channel / 4u + b, c4 - 1u);
    [[unroll]] for (uint i = 0u; i < PIXELS; i++) {
#if CHANNELS == 1
      store(i, 0u, finished(vec4(sums[i][b]), block)[channel % 4u]);
#else
      vec4 values = finished(sums[i][b], block);
      [[unroll]] for (uint c = 0u; c < 4u; c++) store(i, 4u * b + c, values[c]);
#endif
    }
  }
}
