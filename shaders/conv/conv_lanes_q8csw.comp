// Direct convolution of float images with int8 weights, y = sum * scale + bias; the lanes of a subgroup share
// the pixels (common/float_lanes.glslh). Any kernel, stride, dilation and padding; a group has whole blocks
// of four channels in and out.
//
// Memory    x and y: NCHW, float32 or float16 (float_numbers.glslh); w: kPackedInt8_4N4K blocks
//           [group][kh][kw][c4][n4] as texels; channels: float_output.glslh.
// Threads   a workgroup is a subgroup of LANES invocations, for ROWS pixels of a line x LANES blocks of
//           channels of one group; of LANES input channels each lane reads one.
// Needs     shuffles; no shared memory and no barrier.
//
//   c -->   0 | 1 | 2 | .. LANES-1 |      channels in: which lane reads them, of all ROWS pixels
//   ROWS  +---+---+---+------------+      a subgroup: shuffles give each to all lanes
//         +---+---+---+------------+
//   y     | 0 | 1 | 2 | .. LANES-1 |      blocks of four channels: which lane has their ROWS x 4 sums
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8;      // a multiple of four
layout(constant_id = 3) const bool SLIDE = false;  // stride_w and dilation_w are 1, and KW is known
layout(constant_id = 4) const uint ASIDE = 0;      // columns from a texel's first column to the window's
layout(constant_id = 7) const uint KW = 0;  // taps of a line, for unrolling; 0: from the push constants
layout(constant_id = 9) const uint ROWS = 8;
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

#define PIXELS ROWS
uint image, group, n4, oh, ow;  // position of the first pixel, and the lane's channels
uint first_h, first_w;          // first tap of the first pixel in the input
// Columns of the lane's channel that the pixels read: for all taps of a line, or for one tap.
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
  first_h = oh * p.stride_h - p.pad_t;
  first_w = ow * p.stride_w - p.pad_l;
  clear_sums(group * p.n4 + min(n4, p.n4 - 1u));
}

// Multiply the pixels of four channels, which lanes 4 * `from` to 4 * `from` + 3 have read.
void multiply(uint from, uint column, ivec4 words) {
  mat4 weights = weights_of_block(words);
  [[unroll]] for (uint i = 0u; i < PIXELS; i++) {
    vec4 values;
    [[unroll]] for (uint c = 0u; c < 4u; c++) values[c] = subgroupShuffle(window[column + i], 4u * from + c);
    sums[i] += values * weights;
  }
}

// Multiply the taps of one line for LANES channels, of which `left` blocks of four exist. The weights of the
// first tap are at `w_at`, those of the next tap `w_step` after them.
void multiply_line(bool inside, uint line, uint width, uint w_at, uint w_step, uint left) {
  if (SLIDE) read_columns(inside, line, width, first_w);
  [[unroll]] for (uint kw = 0u; kw < taps_of_line(); kw++) {
    if (!SLIDE) read_columns(inside, line, width, first_w + kw * p.dilation_w);
    ivec4 words[LANES / 4u];
    [[unroll]] for (uint b = 0u; b < LANES / 4u; b++)
      words[b] = texelFetch(w, int(w_at + kw * w_step + min(b, left - 1u) * p.n4));
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

// Push constants are read before the loop, and there is a single loop: in a loop, lavapipe reads push
// constants for each lane, and in nested loops it blends all sums twice in every iteration of each.
void main() {
  begin();
  uint height = p.h, width = p.w, lines = p.kh, dilation = p.dilation_h, own = p.group_channels;
  uint w_step = own / 4u * p.n4, w_line = p.kw * w_step;
  uint w_first = group * p.k / 4u * p.n4 + min(n4, p.n4 - 1u), first = image * p.c + group * own + lane();
  uint c = 0u, kh = 0u;
  for (uint step = ceil_div(own, LANES) * lines; step > 0u; step--) {
    uint h = first_h + kh * dilation;
    multiply_line(c + lane() < own && h < height, ((first + c) * height + h) * width, width,
        w_first + c / 4u * p.n4 + kh * w_line, w_step, (own - c) / 4u);
    kh++;
    c += kh == lines ? LANES : 0u;
    kh = kh == lines ? 0u : kh;
  }
  [[unroll]] for (uint i = 0u; i < PIXELS; i++) store(i, group * p.n4 + min(n4, p.n4 - 1u));
}
