// Y[M,N] = X[M,K] (W[N,K] * scale[n])^T + bias[n]: float activations, int8 weights dequantized in the shader,
// float32 accumulation in blocks of k. The weight-only scheme q8csw, for linear layers and (after im2col)
// convolutions.
//
// Memory    x: float32 rows [group][m][x_stride]; w: kPackedInt8_4N4K blocks [group][k4][n4]; channels:
//           [c4][0] scale bits, [1] bias bits; y: float32 [image, channel, oh, ow] as in gemm_output.glslh.
// Threads   a workgroup is LOCAL_X x LOCAL_Y invocations; each computes TILE_M rows x 4 channels.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
layout(constant_id = 2) const bool CLAMPED = false;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channel_blocks[]; };
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "int8x4.glslh"

// Four consecutive k of a row; beyond K the weight is zero, but x must not be read: it could be NaN.
vec4 load_x(uint row, uint k) {
  uint at = row * p.x_stride + k;
  vec4 v = vec4(x[at], 0.0, 0.0, 0.0);
  if (k + 1u < p.k) v.y = x[at + 1u];
  if (k + 2u < p.k) v.z = x[at + 2u];
  if (k + 3u < p.k) v.w = x[at + 3u];
  return v;
}

// The fused activation, where there is one: drivers turn even a comparison with an infinite bound into min
// and max, which lose NaN.
float bounded(float v) { return CLAMPED ? clamp(v, p.y_low, p.y_high) : v; }

void store_row(uint m, uint c4, vec4 sums) {
  vec4 result = sums * channel_blocks[c4 * 2u] + channel_blocks[c4 * 2u + 1u];
  uint line = m / p.ow_padded, ow = m % p.ow_padded, image = line / p.oh, oh = line % p.oh;
  if (line >= p.lines || ow >= p.ow) return;
  [[unroll]] for (uint c = 0u; c < 4u; c++) {
    uint channel = 4u * c4 + c;
    if (channel < p.channels)
      y[((image * p.channels + channel) * p.oh + oh) * p.ow + ow] = bounded(result[c]);
  }
}

void main() {
  uint tiles_n = ceil_div(p.n4, LOCAL_X), tiles_m = ceil_div(p.m, LOCAL_Y * TILE_M), k4 = ceil_div(p.k, 4u);
  uint tile = workgroup_index(), group = tile / (tiles_n * tiles_m);
  uint n4 = tile % tiles_n * LOCAL_X + gl_LocalInvocationID.x;
  uint m = tile / tiles_n % tiles_m * LOCAL_Y * TILE_M + gl_LocalInvocationID.y;
  uint w_base = group * k4 * p.n4 + min(n4, p.n4 - 1u);

  vec4 sums[TILE_M];
  [[unroll]] for (int i = 0; i < TILE_M; i++) sums[i] = vec4(0.0);
  for (uint k = 0u; k < k4; k++) {
    ivec4 words = w[w_base + k * p.n4];
    mat4 columns = mat4(int8x4_unpack_float(words.x), int8x4_unpack_float(words.y),
        int8x4_unpack_float(words.z), int8x4_unpack_float(words.w));
    [[unroll]] for (int i = 0; i < TILE_M; i++)
      sums[i] += load_x(group * p.m + min(m + uint(i) * LOCAL_Y, p.m - 1u), 4u * k) * columns;
  }
  if (n4 < p.n4) {
    [[unroll]] for (int i = 0; i < TILE_M; i++)
      if (m + uint(i) * LOCAL_Y < p.m)
        store_row(p.first_m + m + uint(i) * LOCAL_Y, group * p.n4 + n4, sums[i]);
  }
}
