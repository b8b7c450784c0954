// The mean of each channel of int8 images: y = saturate(round_half_even(float(sum(x - x_zero)) * multiplier)
// + y_zero), the sum exact.
//
// Memory    x: Int8x4 words in the layout of number LAYOUT, whose words hold four channels of one pixel; y:
//           the same, one pixel.
// Threads   a workgroup adds up four channels of one image: each invocation every LOCAL_X-th pixel, then
//           halves in shared memory.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint n, c, h, w, c4;
  int x_zero, y_zero, y_min, y_max;
  float multiplier;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "requantize.glslh"
#include "layout/any.glslh"

shared ivec4 sums[LOCAL_X];

void main() {
  uint block = workgroup_index(), me = gl_LocalInvocationID.x, pixels = p.h * p.w;
  uvec4 e = uvec4(block / p.c4, block % p.c4 * 4u, 0u, 0u), extent = uvec4(p.n, p.c, p.h, p.w);
  ivec4 total = ivec4(0);
  for (uint i = me; i < pixels; i += LOCAL_X) {
    e.z = i / p.w;
    e.w = i - e.z * p.w;
    total += int8x4_unpack(x[any_layout_word(LAYOUT, e, extent)]);
  }
  sums[me] = total;
  barrier();
  for (uint half_ = LOCAL_X / 2u; half_ > 0u; half_ /= 2u) {
    if (me < half_) sums[me] += sums[me + half_];
    barrier();
  }
  if (me == 0u) {
    ivec4 acc = sums[0] - p.x_zero * int(pixels), q;
    [[unroll]] for (int i = 0; i < 4; i++)
      q[i] = requantize(acc[i], p.multiplier, p.y_zero, p.y_min, p.y_max);
    y[any_layout_word(LAYOUT, uvec4(e.xy, 0u, 0u), uvec4(p.n, p.c, 1u, 1u))] = int8x4_pack(q);
  }
}
