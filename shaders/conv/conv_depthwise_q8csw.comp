// Depthwise convolution of float images with int8 weights, y = sum * scale + bias, with the sum over (kh, kw)
// in order. Kernel and stride are constants and the dilation is 1, so that an invocation reads each input
// line once for all its output lines.
//
// Memory    x and y: NCHW, float32 or float16 (float_numbers.glslh); w: a run of bytes for each output
//           channel, (kh, kw) in order, padded to whole texels; or (FLOAT_WEIGHTS, scheme f32) of float32,
//           with each product and sum rounded; channels: float_output.glslh.
// Threads   an invocation computes ROWS lines x PIXELS pixels of a channel; neighbouring invocations compute
//           neighbouring pixels.
// Needs     no shared memory and no barrier.
//
//   y: ROWS lines x PIXELS pixels   | 0 .. 0 | 1 .. 1 | ..    which invocation, of one channel
//                                   | 0 .. 0 | 1 .. 1 | ..
//   x: LINES lines of COLUMNS numbers, each read once for all 0 that see it
#version 450
#extension GL_EXT_control_flow_attributes : require
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 3) const uint ROWS = 1;
layout(constant_id = 4) const uint ASIDE = 0;  // columns from a texel's first column to the window's
layout(constant_id = 5) const uint STRIDE_H = 1;
layout(constant_id = 6) const uint STRIDE_W = 1;
layout(constant_id = 7) const uint KW = 1;
layout(constant_id = 8) const uint KH = 1;
layout(constant_id = 9) const bool FLOAT_WEIGHTS = false;

#include "float_numbers.glslh"
#if X_TEXELS
layout(set = 0, binding = 0) uniform isamplerBuffer x;
#else
layout(set = 0, binding = 0) readonly buffer X { Number x[]; };
#endif
layout(set = 0, binding = 1) uniform isamplerBuffer w;
layout(set = 0, binding = 2) uniform isamplerBuffer channels;
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float_weight.glslh"
#define NO_STORE_ROW
#include "float_output.glslh"
#include "rounded_sum.glslh"

#define PIXELS 8u
#define LINES ((ROWS - 1u) * STRIDE_H + KH)  // input lines that the output lines read
#define TAP_TEXELS ((KH * KW + 15u) / 16u)
#define FLOAT_TEXELS ((KH * KW + 3u) / 4u)
#define COLUMNS ((PIXELS - 1u) * STRIDE_W + KW)
#define COLUMN_STRIDE 1u
#include "float_columns.glslh"

float sums[ROWS][PIXELS];
vec4 taps[4u * TAP_TEXELS];

void read_taps(uint channel, float zero) {
  [[unroll]] for (uint t = 0u; FLOAT_WEIGHTS && t < FLOAT_TEXELS; t++)
    taps[t] = intBitsToFloat(texelFetch(w, int(channel * FLOAT_TEXELS + t)));
  [[unroll]] for (uint t = 0u; !FLOAT_WEIGHTS && t < TAP_TEXELS; t++) {
    ivec4 words = texelFetch(w, int(channel * TAP_TEXELS + t));
    [[unroll]] for (uint i = 0u; i < 4u; i++) taps[4u * t + i] = weights_of_channel(words[i], zero);
  }
}

// Multiply input line k (counted from the first output line's first) by the taps that read it.
void multiply_line(uint k) {
  [[unroll]] for (uint row = 0u; row < ROWS; row++) {
    uint first = row * STRIDE_H;
    if (k < first || k >= first + KH) continue;
    [[unroll]] for (uint kw = 0u; kw < KW; kw++) {
      uint tap = (k - first) * KW + kw;
      [[unroll]] for (uint i = 0u; i < PIXELS; i++)
        sums[row][i] =
            added(sums[row][i], window[i * STRIDE_W + kw], taps[tap / 4u][tap % 4u], FLOAT_WEIGHTS);
    }
  }
}

void main() {
  uint across = ceil_div(p.ow, PIXELS), down = ceil_div(p.oh, ROWS);
  uint all = p.images * p.channels * down * across;
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x, at = min(i, all - 1u), line = at / across;
  uint plane = line / down, oh = (line - plane * down) * ROWS, ow = (at - line * across) * PIXELS;
  uint image = plane / p.channels, channel = plane - image * p.channels;
  uint x_plane = (image * p.c + channel / p.group_oc) * p.h;
  read_taps(channel, channel_block(channel / 4u, ZERO)[channel % 4u]);
  [[unroll]] for (uint r = 0u; r < ROWS; r++)
    [[unroll]] for (uint k = 0u; k < PIXELS; k++) sums[r][k] = 0.0;
  [[unroll]] for (uint k = 0u; k < LINES; k++) {
    uint h = oh * STRIDE_H + k - p.pad_t;
    read_columns(h < p.h, (x_plane + h) * p.w, p.w, ow * STRIDE_W - p.pad_l);
    multiply_line(k);
  }
  vec4 scales = channel_block(channel / 4u, SCALE), biases = channel_block(channel / 4u, BIAS);
  float scale = scales[channel % 4u], bias = biases[channel % 4u];
  [[unroll]] for (uint r = 0u; r < ROWS; r++) {
    uint y_at = (plane * p.oh + oh + r) * p.ow + ow;
    [[unroll]] for (uint k = 0u; k < PIXELS; k++)
      if (i < all && oh + r < p.oh && ow + k < p.ow)
        store_number(y, y_at + k, bounded(sums[r][k] * scale + bias));
  }
}
