// Depthwise convolution of float images with int8 weights: every output channel reads one input channel. y =
// sum * scale + bias, with the sum over (kh, kw) in order. All lines of taps are loaded, in whole vectors,
// before the first is multiplied.
//
// Memory    x and y: NCHW, float32 or float16, lines of whole vectors of 4 numbers; w: [channel][kh][kw] of
//           weights less their zero point as float32, then scale and bias, padded to whole vectors.
// Threads   a workgroup is LOCAL_X runs of PIXELS pixels of a line x LOCAL_Y lines of one channel of one
//           image.
//
//   y of a channel   | 0 .. 0 | 1 .. 1 | ..  LOCAL_X    runs of PIXELS pixels, and which invocation has them
//                    |   ..   |   ..   |     LOCAL_Y
//   x under one      KH lines of VECTORS vectors, in registers before the first is multiplied
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 16;
layout(constant_id = 1) const uint LOCAL_Y = 8;
layout(constant_id = 3) const uint STRIDE_W = 1;
layout(constant_id = 4) const uint PAD_L = 1;
layout(constant_id = 5) const uint DILATION_W = 1;
layout(constant_id = 7) const uint KW = 3;
layout(constant_id = 8) const uint KH = 3;
layout(constant_id = 9) const bool ROUNDED = false;  // round each product and sum (scheme f32)

#include "float_numbers.glslh"
layout(set = 0, binding = 0) readonly buffer X { StoredFour x[]; };
layout(set = 0, binding = 1) readonly buffer W { vec4 w[]; };
layout(set = 0, binding = 2) writeonly buffer Y { StoredFour y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"

#define PIXELS 8
#define RUN (PIXELS / 4)  // vectors of an invocation
const uint BEFORE = (4u - PAD_L % 4u) % 4u;  // columns of the first vector that are left of the window
const uint VECTORS = (BEFORE + (PIXELS - 1) * STRIDE_W + (KW - 1) * DILATION_W + 4u) / 4u;
const uint TAPS = KH * KW, WEIGHTS = (TAPS + 5u) / 4u;

#include "rounded_sum.glslh"

#define WEIGHT(i) weights[(i) / 4u][(i) % 4u]
void main() {
  uint tiles = p.tiles_h * p.tiles_w, index = workgroup_index(), plane = index / tiles;
  uint place = index - plane * tiles, tile_h = place / p.tiles_w;
  uint run = (place - tile_h * p.tiles_w) * LOCAL_X + gl_LocalInvocationID.x;
  uint oh = tile_h * LOCAL_Y + gl_LocalInvocationID.y;
  uint image = plane / p.channels, channel = plane - image * p.channels;
  uint line4 = p.w / 4u, x_plane = (image * p.c + channel / p.group_oc) * p.h;
  int first = int(run * RUN * STRIDE_W) - int((PAD_L + 3u) / 4u);

  StoredFour raw[KH][VECTORS];
  [[unroll]] for (uint kh = 0u; kh < KH; kh++) {
    uint h = oh * p.stride_h - p.pad_t + kh * p.dilation_h;
    [[unroll]] for (uint v = 0u; v < VECTORS; v++) {
      uint column = uint(first + int(v));
      bool inside = h < p.h && column < line4;
      StoredFour value = x[inside ? (x_plane + h) * line4 + column : 0u];
      raw[kh][v] = inside ? value : StoredFour(0);
    }
  }
  vec4 weights[WEIGHTS];
  [[unroll]] for (uint i = 0u; i < WEIGHTS; i++) weights[i] = w[channel * WEIGHTS + i];
  vec4 sums[RUN];
  [[unroll]] for (uint v = 0u; v < RUN; v++) sums[v] = vec4(0.0);
  [[unroll]] for (uint kh = 0u; kh < KH; kh++) {
    vec4 window[VECTORS];
    [[unroll]] for (uint v = 0u; v < VECTORS; v++) window[v] = floats_of(raw[kh][v]);
    [[unroll]] for (uint kw = 0u; kw < KW; kw++) {
      [[unroll]] for (uint i = 0u; i < PIXELS; i++) {
        uint at = BEFORE + i * STRIDE_W + kw * DILATION_W;
        sums[i / 4u][i % 4u] =
            added(sums[i / 4u][i % 4u], window[at / 4u][at % 4u], WEIGHT(kh * KW + kw), ROUNDED);
      }
    }
  }
  if (oh >= p.oh) return;
  uint at = (plane * p.oh + oh) * (p.ow / 4u) + run * RUN;
  [[unroll]] for (uint v = 0u; v < RUN; v++) {
    vec4 values = bounded(sums[v] * WEIGHT(TAPS) + WEIGHT(TAPS + 1u));
    if (run * RUN + v < p.ow / 4u) y[at + v] = stored_four(values);
  }
}
