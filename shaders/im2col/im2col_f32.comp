// The im2col matrix of a float32 convolution: row = output pixel, column = filter tap x channel, padding
// filled with 0.
//
// Memory    x: float32 NCHW; y: float32 rows [group][m][k] for the rows of one chunk.
// Threads   one invocation writes one element, neighbours along k.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "conv_window.glslh"

void main() {
  uint at = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uint k = at % p.k, m = at / p.k % p.m, group = at / p.k / p.m;
  Pixel pixel = window_of_row(p.first_m + m);
  Tap tap = tap_of_column(k, group);
  uint h = uint(pixel.h + tap.h), w = uint(pixel.w + tap.w);
  float value = 0.0;
  if (pixel.image < p.images && tap.channel < p.c && h < p.h && w < p.w)
    value = x[((pixel.image * p.c + tap.channel) * p.h + h) * p.w + w];
  if (group < p.groups) y[at] = value;
}
