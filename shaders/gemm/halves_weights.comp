// Convert int8 weights minus their zero points to float16 for products in float16 arithmetic
// (tiled_halves.glslh). Weights are scaled by 2^-5, so that sums of 16 products are finite for activations
// up to 500.
//
// Memory    w: int8 in kPackedInt8_4N4K blocks [group][k4][n4], k = (tap, channel); y: float16
//           [group][tap][k][n4] as uvec2, the k of each tap padded with zeros to a multiple of 16; channels:
//           float32 parameters (float_output.glslh).
// Threads   one invocation writes one uvec2; neighbouring invocations have neighbouring blocks of channels.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 64) in;

layout(set = 0, binding = 0) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 1) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 2) writeonly buffer Y { uvec2 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint groups, taps;
  uint group_channels, padded;  // channels of a tap, and this number rounded up to a multiple of 16
  uint n4;
} p;

#include "workgroup.glslh"
#include "float_weight.glslh"

void main() {
  uint index = workgroup_index() * 64u + gl_LocalInvocationID.x, row = index / p.n4, n4 = index - row * p.n4;
  uint tap = row / p.padded, channel = row - tap * p.padded, group = tap / p.taps;
  if (group >= p.groups) return;
  uint k = (tap - group * p.taps) * p.group_channels + min(channel, p.group_channels - 1u);
  uint k4 = (p.taps * p.group_channels + 3u) / 4u;
  ivec4 words = w[(group * k4 + k / 4u) * p.n4 + n4];
  vec4 zeros = channels[3u * (group * p.n4 + n4) + 2u];
  vec4 values = channel < p.group_channels ? weights_of_lane(words, k % 4u, zeros) * 0.03125 : vec4(0.0);
  y[index] = uvec2(packHalf2x16(values.xy), packHalf2x16(values.zw));
}
