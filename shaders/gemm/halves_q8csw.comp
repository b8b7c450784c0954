// x as the float16 kernels of the scheme q8csw read it (gemm_q8csw_coopmat.comp): runs of 8 channels of a
// pixel (a matrix: of 8 k of a row), of each four the second and third in each other's place.
//
// Memory    x: [image][channel][pixel] float32, or (HALF) words of two float16; y: [image][group][run][pixel]
//           uvec4. Beyond a group's channels there are zeros.
// Threads   one for each uvec4; neighbours have neighbouring pixels.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 64) in;

#if HALF
layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#endif
layout(set = 0, binding = 1) writeonly buffer Y { uvec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint images, groups;
  uint group_channels, runs;  // of a group; of 8 channels
  uint plane;                 // pixels of an image
} p;

#include "workgroup.glslh"
#include "float16.glslh"

float value_at(uint at) {
#if HALF
  return unpackHalf2x16(x[at / 2u] >> 16u * (at % 2u)).x;
#else
  return x[at];
#endif
}

void main() {
  uint index = workgroup_index() * 64u + gl_LocalInvocationID.x;
  if (index >= p.images * p.groups * p.runs * p.plane) return;
  uint pixel = index % p.plane, block = index / p.plane, run = block % p.runs, of = block / p.runs;
  uint count = p.group_channels, at = of * count * p.plane + pixel;
  vec4 values[2];
  [[unroll]] for (uint i = 0u; i < 8u; i++) {
    uint channel = 8u * run + i;
    values[i / 4u][i % 4u] = channel < count ? value_at(at + min(channel, count - 1u) * p.plane) : 0.0;
  }
  y[index] = uvec4(float16_word(values[0].xz), float16_word(values[0].yw), float16_word(values[1].xz),
      float16_word(values[1].yw));
}
