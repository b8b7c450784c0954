// Convolution of float images with int8 weights straight from the image, y = sum * scale + bias, with pixels
// that lanes share: common/float_lanes.glslh. Any kernel, stride, dilation and padding, groups of whole
// blocks of four channels in and out.
//
// Memory    x and y: NCHW, float32 or float16 (float_numbers.glslh); w: kPackedInt8_4N4K blocks
//           [group][kh][kw][c4][n4] as texels; channels: float_output.glslh.
// Threads   a workgroup is a subgroup of LANES invocations, for ROWS pixels of a line x LANES blocks of
//           channels of one group; of as many channels in each lane reads one.
// Needs     shuffles; no shared memory and no barrier.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8;      // a multiple of four
layout(constant_id = 3) const bool SLIDE = false;  // stride_w and dilation_w are 1, and KW is known
layout(constant_id = 4) const uint ASIDE = 0;      // columns between a texel's first and the window's
layout(constant_id = 7) const uint KW = 0;  // taps of a line, so that they are unrolled; 0: as pushed
#define taps_of_line() (KW > 0u ? KW : p.kw)

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
#define NO_STORE_ROW
#include "float_lanes.glslh"

#define PIXELS uint(ROWS)
uint image, group, n4, oh, ow;  // of the first pixel, and the lane's channels
// Under the pixels, of the channel that the lane reads: of all taps of a line, or of one.
#define COLUMNS (SLIDE ? PIXELS + KW - 1u : PIXELS)
#define COLUMN_STRIDE p.stride_w
#include "float_columns.glslh"

void begin() {
  uint tiles = ceil_div(p.n4, LANES), blocks = ceil_div(p.ow, PIXELS), index = workgroup_index();
  uint across = index / tiles, line = across / blocks;
  n4 = (index - across * tiles) * LANES + lane();
  ow = (across - line * blocks) * PIXELS;
  uint of_group = line / p.oh;
  oh = line - of_group * p.oh;
  group = of_group / p.images;
  image = of_group - group * p.images;
  clear_sums(group * p.n4 + min(n4, p.n4 - 1u));
}

// The pixels of the channels from four times `from` on, as their lanes have read them.
void multiply(uint from, uint column, ivec4 words) {
  mat4 weights = weights_of_block(words);
  [[unroll]] for (uint i = 0u; i < PIXELS; i++) {
    vec4 values;
    [[unroll]] for (uint c = 0u; c < 4u; c++) values[c] = subgroupShuffle(window[column + i], 4u * from + c);
    sums[i] += values * weights;
  }
}

// The taps of one line on LANES channels, of which c4 blocks are there; their first weights are at `w_at`.
void multiply_line(bool inside, uint line, uint w_at, uint c4) {
  uint first = ow * p.stride_w - p.pad_l, blocks = p.group_channels / 4u;
  if (SLIDE) read_columns(inside, line, first);
  [[unroll]] for (uint kw = 0u; kw < taps_of_line(); kw++) {
    if (!SLIDE) read_columns(inside, line, first + kw * p.dilation_w);
    ivec4 words[LANES / 4u];
    [[unroll]] for (uint b = 0u; b < LANES / 4u; b++)
      words[b] = texelFetch(w, int(w_at + (kw * blocks + min(b, c4 - 1u)) * p.n4));
    [[unroll]] for (uint b = 0u; b < LANES / 4u; b++) multiply(b, SLIDE ? kw : 0u, words[b]);
  }
}

void store(uint pixel, uint block) {
  vec4 values = output_values(sums[pixel], block);
  uint at = ((image * p.channels + 4u * block) * p.oh + oh) * p.ow + ow + pixel;
  [[unroll]] for (uint c = 0u; c < 4u; c++)
    if (ow + pixel < p.ow && n4 < p.n4 && 4u * block + c < p.channels)
      store_number(y, at + c * p.plane, values[c]);
}

void main() {
  begin();
  uint blocks = p.group_channels / 4u, w_first = group * p.k / 4u * p.n4 + min(n4, p.n4 - 1u);
  for (uint c = 0u; c < p.group_channels; c += LANES) {
    bool real = c + lane() < p.group_channels;
    uint plane = (image * p.c + group * p.group_channels + c + lane()) * p.h;
    for (uint kh = 0u; kh < p.kh; kh++) {
      uint h = oh * p.stride_h + kh * p.dilation_h - p.pad_t;
      uint at = w_first + (kh * p.kw * blocks + c / 4u) * p.n4;
      multiply_line(real && h < p.h, (plane + h) * p.w, at, blocks - c / 4u);
    }
  }
  [[unroll]] for (uint i = 0u; i < PIXELS; i++) store(i, group * p.n4 + n4);
}
