// Direct convolution of float32 images with float32 weights: y = sum + bias. The sum runs over (channel, kh,
// kw) in this order, and each product and each sum is rounded. The lanes of a subgroup share the pixels that
// they read. KW, the width of the kernel, is a constant; stride, dilation and padding are free; each group
// has a multiple of four output channels.
//
// Memory    x and y: NCHW; w: a texel of four output channels for each [channel in][kh][kw][c4]; channels:
//           float_output.glslh.
// Threads   a workgroup is a subgroup of LANES invocations, for ROWS pixels of a line x LANES blocks of
//           channels of one group; each lane reads a texel or a number of the input under the pixels.
// Needs     shuffles; no shared memory and no barrier.
//
//   a line of x   | 0 | 1 | 2 | .. LANES-1 |      which lane reads it: shuffles give it to all lanes
//   y             | 0 | 1 | 2 | .. LANES-1 |      blocks of four channels: which lane has their ROWS x 4 sums
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 3) const uint STRIDE_W = 1;
layout(constant_id = 4) const uint ASIDE = 0;  // X_TEXELS: from a texel's first column to the window's
layout(constant_id = 5) const uint DILATION_W = 1;
layout(constant_id = 7) const uint KW = 1;
layout(constant_id = 9) const uint ROWS = 8;

#if X_TEXELS
layout(set = 0, binding = 0) uniform isamplerBuffer x;
#define PER_LANE 4u
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#define PER_LANE 1u
#endif
layout(set = 0, binding = 1) uniform isamplerBuffer w;
layout(set = 0, binding = 2) uniform isamplerBuffer channels;
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#define NO_STORE_ROW
#include "float_output.glslh"

#define lane() gl_LocalInvocationID.x
#define COLUMNS (ASIDE + (ROWS - 1u) * STRIDE_W + (KW - 1u) * DILATION_W + 1u)  // columns read, with ASIDE
#define READS ((COLUMNS + PER_LANE * LANES - 1u) / (PER_LANE * LANES))

vec4 sums[ROWS];
#if X_TEXELS
vec4 read[READS];
#define number_at(i) subgroupShuffle(read[(i) / (4u * LANES)][(i) % 4u], (i) / 4u % LANES)
#else
float read[READS];
#define number_at(i) subgroupShuffle(read[(i) / LANES], (i) % LANES)
#endif

// Read the line of x that begins at `line`, from column `first` on; columns outside the line are zero.
void read_line(bool inside, uint line, uint width, uint first) {
  [[unroll]] for (uint v = 0u; v < READS; v++) {
    uint column = first + PER_LANE * (v * LANES + lane());
    bool real = inside && column < width;
#if X_TEXELS
    vec4 four = intBitsToFloat(texelFetch(x, int(real ? (line + column) / 4u : 0u)));
    read[v] = real ? four : vec4(0.0);
#else
    float value = x[real ? line + column : 0u];
    read[v] = real ? value : 0.0;
#endif
  }
}

vec4 added(vec4 sum, float value, vec4 weights) {
  precise vec4 product = value * weights, both = sum + product;
  return both;
}

// Push constants are read before the only loop: in a loop, lavapipe reads them for each lane.
void main() {
  uint tiles = ceil_div(p.n4, LANES), blocks = ceil_div(p.ow, ROWS), index = workgroup_index();
  uint across = index / tiles, line = across / blocks, tile = index - across * tiles;
  uint n4 = min(tile * LANES + lane(), p.n4 - 1u), ow = (across - line * blocks) * ROWS;
  uint of_group = line / p.oh, oh = line - of_group * p.oh, group = of_group / p.images;
  uint image = of_group - group * p.images;
  uint first_h = oh * p.stride_h - p.pad_t, first_w = ow * STRIDE_W - p.pad_l - ASIDE;
  uint height = p.h, width = p.w, lines = p.kh, dilation = p.dilation_h, own = p.group_channels;
  uint step = p.n4, w_at = group * own * lines * KW * step + n4, plane = (image * p.c + group * own) * height;
  uint kh = 0u, c4 = group * p.n4 + n4;
  [[unroll]] for (uint i = 0u; i < ROWS; i++) sums[i] = vec4(0.0);
  for (uint left = own * lines; left > 0u; left--) {
    uint h = first_h + kh * dilation;
    read_line(h < height, (plane + h) * width, width, first_w);
    vec4 weights[KW];
    [[unroll]] for (uint kw = 0u; kw < KW; kw++)
      weights[kw] = intBitsToFloat(texelFetch(w, int(w_at + kw * step)));
    [[unroll]] for (uint kw = 0u; kw < KW; kw++)
      [[unroll]] for (uint i = 0u; i < ROWS; i++)
        sums[i] = added(sums[i], number_at(ASIDE + i * STRIDE_W + kw * DILATION_W), weights[kw]);
    w_at += KW * step;
    kh++;
    plane += kh == lines ? height : 0u;
    kh = kh == lines ? 0u : kh;
  }
  uint at = ((image * p.channels + 4u * c4) * p.oh + oh) * p.ow + ow;
  [[unroll]] for (uint i = 0u; i < ROWS; i++) {
    vec4 values = output_values(sums[i], c4);
    [[unroll]] for (uint c = 0u; c < 4u; c++)
      if (ow + i < p.ow && tile * LANES + lane() < p.n4 && 4u * c4 + c < p.channels)
        y[at + c * p.plane + i] = values[c];
  }
}
