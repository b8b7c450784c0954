// Pack x for the matrix-unit kernels of the scheme q8csw (gemm_coopmat.comp) in runs of 8 channels of a
// pixel, or (ROWS) of 8 k of a row; runs of neighbouring pixels or rows are contiguous. A number is converted
// to float16, or (BRAIN) split into three bfloat16 parts with 8 significant bits each, whose sum is the
// number exactly. The smallest part comes first. For an infinity or NaN, the largest part is the infinity or
// NaN, and the other two parts are zero.
//
// Memory    x: [image][channel][pixel], float32 or (HALF) words of two float16; with ROWS, [row][k], as uvec4
//           if k is a multiple of 8 (WHOLE); y: float16 [image][group][run][pixel] or (BRAIN) bfloat16 [part]
//           [image][group][run][pixel], where a run is a uvec4. Channels past the end of a group are zeros.
// Threads   one invocation packs 8 numbers; neighbouring invocations have neighbouring pixels.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 64) in;

#if WHOLE
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
#elif HALF
layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#endif
layout(set = 0, binding = 1) writeonly buffer Y { uvec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint images, groups;
  uint group_channels, runs;  // channels of a group, and runs of 8 channels of a group
  uint plane;                 // pixels of an image (ROWS: number of rows)
} p;

#include "workgroup.glslh"
#if BRAIN
#include "bfloat16_parts.glslh"
#else
#include "float16.glslh"
#endif

#if !WHOLE
float value_at(uint at) {
#if HALF
  return unpackHalf2x16(x[at / 2u] >> 16u * (at % 2u)).x;
#else
  return x[at];
#endif
}

// Store run number `index` of each part; a part has `all` runs.
void store_run(uint index, uint all, vec4 values[2]) {
#if BRAIN
  uvec4 parts[3];
  [[unroll]] for (uint i = 0u; i < 4u; i++) {
    vec2 two = i % 2u == 0u ? values[i / 2u].xy : values[i / 2u].zw;
    [[unroll]] for (uint q = 0u; q < 3u; q++) {
      uint low = largest_part(two.x);
      parts[2u - q][i] = low >> 16 | largest_part(two.y);
    }
  }
  [[unroll]] for (uint q = 0u; q < 3u; q++) y[q * all + index] = parts[q];
#else
  y[index] = float16_words(values[0], values[1]);
#endif
}
#endif

void main() {
  uint index = workgroup_index() * 64u + gl_LocalInvocationID.x;
  uint all = p.images * p.groups * p.runs * p.plane;
  if (index >= all) return;
  uint pixel = index % p.plane, block = index / p.plane, run = block % p.runs, of = block / p.runs;
#if WHOLE && HALF
  y[index] = x[pixel * p.runs + run];
#elif WHOLE
  uint at = 2u * (pixel * p.runs + run);
  y[index] = float16_words(uintBitsToFloat(x[at]), uintBitsToFloat(x[at + 1u]));
#else
  uint count = p.group_channels, apart = ROWS == 1 ? 1u : p.plane;
  uint at = ROWS == 1 ? pixel * count : of * count * p.plane + pixel;
  vec4 values[2];
  [[unroll]] for (uint i = 0u; i < 8u; i++) {
    uint channel = 8u * run + i;
    values[i / 4u][i % 4u] = channel < count ? value_at(at + min(channel, count - 1u) * apart) : 0.0;
  }
  store_run(index, all, values);
#endif
}
