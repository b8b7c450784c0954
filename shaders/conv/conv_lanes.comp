// Direct convolution of float images, y = sum * scale + bias; the lanes of a subgroup share the pixels that
// they read (float_lanes.glslh). Any kernel, stride, dilation and padding. Weights are int8, or
// (FLOAT_WEIGHTS, scheme f32) float32. With float32 weights, each product and each sum is rounded, and
// products are added in the order (channel, kh, kw). The output channels of a group are whole blocks of four;
// with int8 weights, its input channels are whole blocks of four, too.
//
// Memory    x and y: NCHW, float32 or float16 (float_numbers.glslh); w: texels, whose order
//           lanes_of_channels.glslh or (FLOAT_WEIGHTS) lanes_of_columns.glslh states; channels: float32
//           parameters as texels (float_output.glslh).
// Threads   a workgroup is one subgroup of LANES invocations. It computes ROWS pixels of a line x LANES
//           blocks of four channels of one group.
// Needs     shuffles; no shared memory and no barrier.
//
//   channels -->  0 | 1 | 2 | .. LANES-1 |    int8 weights: which lane reads a channel of x
//   columns  -->  0 | 1 | 2 | .. LANES-1 |    FLOAT_WEIGHTS: the lane that reads a column of a line of x
//               +---+---+---+------------+    shuffles give the numbers that a lane has read to all lanes
//         y     | 0 | 1 | 2 | .. LANES-1 |    the lane that has the ROWS x 4 sums of a block of four channels
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
#if FLOAT16_IMAGES
#extension GL_EXT_shader_16bit_storage : require
#endif

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8;  // number of invocations, with int8 weights a multiple of four
layout(constant_id = 4) const uint ASIDE = 0;  // X_TEXELS: lane of column -padding in its texel
layout(constant_id = 9) const uint ROWS = 8;

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

// position of the first pixel (image, oh, ow); the lane's block of channels (group, n4)
uint image, group, n4, oh, ow;
#define own_n4 min(n4, p.n4 - 1u)

// lanes_of_columns.glslh or lanes_of_channels.glslh multiplies lines of taps, and defines
//   AT_ONCE                    the number of input channels that multiply_line multiplies
//   void begin_lines()         go to the first line of the group's first channels
//   void multiply_line(uint kh, uint h)   multiply line h of x by line kh of the taps of AT_ONCE channels
//   void next_line(bool last)  go to the next line; last: to the first line of the next AT_ONCE channels
// Read push constants before the loop over lines, and use a single loop. In a loop, lavapipe reads push
// constants for each lane; in nested loops, it blends all sums twice in every iteration of each loop.
#if FLOAT_WEIGHTS
#include "lanes_of_columns.glslh"
#else
#include "lanes_of_channels.glslh"
#endif

void begin() {
  uint tiles = ceil_div(p.n4, LANES), blocks = ceil_div(p.ow, ROWS), index = workgroup_index();
  uint across = index / tiles, line = across / blocks;
  n4 = (index - across * tiles) * LANES + lane();
  ow = (across - line * blocks) * ROWS;
  uint of_group = line / p.oh;
  oh = line - of_group * p.oh;
  group = of_group / p.images;
  image = of_group - group * p.images;
  clear_sums(group * p.n4 + own_n4);
  begin_lines();
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
  uint first_h = oh * p.stride_h - p.pad_t, lines = p.kh, dilation = p.dilation_h, kh = 0u;
  for (uint left = ceil_div(p.group_channels, AT_ONCE) * lines; left > 0u; left--) {
    multiply_line(kh, first_h + kh * dilation);
    kh++;
    next_line(kh == lines);
    kh = kh == lines ? 0u : kh;
  }
  [[unroll]] for (uint i = 0u; i < ROWS; i++) store(i, group * p.n4 + own_n4);
}
