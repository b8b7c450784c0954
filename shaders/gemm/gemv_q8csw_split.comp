// Y[M,N] = X[M,K] (W[N,K] * scale[n])^T + bias[n] for few rows: float activations, int8 weights dequantized
// in the shader. Bound by reading the weights once, so many threads share the sum over k.
//
// Memory    x: float32 rows [group][m][x_stride]; w: kPackedInt8_4N4K blocks [group][k4][n4]; channels:
//           [c4][0] scale bits, [1] bias bits; y: float32 [image, channel, oh, ow] as in gemm_output.glslh.
// Threads   a workgroup is LOCAL_X column blocks x LOCAL_Y parts of k and computes ROWS rows.
// Needs     16 bytes of shared memory an invocation and row.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 4;
layout(constant_id = 1) const uint LOCAL_Y = 32;
layout(constant_id = 2) const bool CLAMPED = false;

#if WHOLE_VECTORS
layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#endif
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channel_blocks[]; };
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };

#define PART vec4
#define UNROLL 4
#include "push.glslh"
#include "workgroup.glslh"
#include "int8x4.glslh"
#include "split_sum.glslh"

// Four consecutive k of a row; beyond K the weight is zero, but x must not be read: it could be NaN.
vec4 load_x(uint row, uint k4) {
#if WHOLE_VECTORS
  return x[row * (p.x_stride / 4u) + k4];
#else
  uint k = 4u * k4, at = row * p.x_stride + k;
  vec4 v = vec4(x[at], 0.0, 0.0, 0.0);
  if (k + 1u < p.k) v.y = x[at + 1u];
  if (k + 2u < p.k) v.z = x[at + 2u];
  if (k + 3u < p.k) v.w = x[at + 3u];
  return v;
#endif
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
  uint tiles_n = ceil_div(p.n4, LOCAL_X), tiles_m = ceil_div(p.m, ROWS), k4 = ceil_div(p.k, 4u);
  uint tile = workgroup_index(), m = tile / tiles_n % tiles_m * ROWS, group = tile / tiles_n / tiles_m;
  uint column = tile % tiles_n * LOCAL_X + gl_LocalInvocationID.x;
  uint w_base = group * k4 * p.n4 + min(column, p.n4 - 1u);

  vec4 sums[ROWS] = {};
  for (uint first = gl_LocalInvocationID.y; first < k4; first += UNROLL * LOCAL_Y) {
    ivec4 words[UNROLL];
    [[unroll]] for (uint i = 0u; i < UNROLL; i++)
      words[i] = w[w_base + min(first + i * LOCAL_Y, k4 - 1u) * p.n4];
    [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
      uint k = first + i * LOCAL_Y;
      if (k < k4) {
        ivec4 block = words[i];
        mat4 columns = mat4(int8x4_unpack_float(block.x), int8x4_unpack_float(block.y),
                            int8x4_unpack_float(block.z), int8x4_unpack_float(block.w));
        [[unroll]] for (uint r = 0u; r < ROWS; r++)
          sums[r] += load_x(group * p.m + min(m + r, p.m - 1u), k) * columns;
      }
    }
  }
  sum_parts(sums);
  if (gl_LocalInvocationID.y == 0u && column < p.n4) {
    [[unroll]] for (uint r = 0u; r < ROWS; r++)
      if (m + r < p.m) store_row(p.first_m + m + r, group * p.n4 + column, sums[r]);
  }
}
