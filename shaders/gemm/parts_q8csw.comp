// float32 x as the bfloat16 kernels of the scheme q8csw read it (gemm_q8csw_coopmat.comp, BRAIN): a number is
// the sum of three of 8 bits each, exactly, of which the smallest comes first. What is infinite or no number
// is so in its largest part, and the others are zero.
//
// Memory    x: [image][channel][pixel], or (ROWS) [row][k]; y: [part][image][group][run][pixel] uvec4 of 8
//           channels of a pixel or 8 k of a row. Beyond a group's channels there are zeros.
// Threads   one for 8 numbers; neighbours have neighbouring pixels.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 64) in;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { uvec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint images, groups;
  uint group_channels, runs;  // of a group; of 8 channels
  uint plane;                 // pixels of an image, or rows
} p;

#include "workgroup.glslh"
#include "bfloat16_parts.glslh"

void main() {
  uint index = workgroup_index() * 64u + gl_LocalInvocationID.x;
  uint all = p.images * p.groups * p.runs * p.plane;
  if (index >= all) return;
  uint pixel = index % p.plane, block = index / p.plane, run = block % p.runs, of = block / p.runs;
  uint count = p.group_channels, apart = ROWS == 1 ? 1u : p.plane;
  uint at = ROWS == 1 ? pixel * count : of * count * p.plane + pixel;
  uvec4 parts[3];
  [[unroll]] for (uint i = 0u; i < 4u; i++) {
    uint channel = 8u * run + 2u * i, last = count - 1u;
    float first = x[at + min(channel, last) * apart], second = x[at + min(channel + 1u, last) * apart];
    if (channel > last) first = 0.0;
    if (channel + 1u > last) second = 0.0;
    [[unroll]] for (uint q = 0u; q < 3u; q++) {
      uint low = largest_part(first);
      parts[2u - q][i] = low >> 16 | largest_part(second);
    }
  }
  [[unroll]] for (uint q = 0u; q < 3u; q++) y[q * all + index] = parts[q];
}
