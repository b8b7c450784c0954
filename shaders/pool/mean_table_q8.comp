// For each channel, the mean of table[x] over the channel's pixels x:
//   y = saturate(round_half_even(float(sum of table[x]) * multiplier) + y_zero)
// The table holds integers of at most 2^29. The sum is kept in two 32-bit words, so it is exact.
//
// Memory    x: Int8x4 words in layout number LAYOUT; a word is four channels of one pixel; y: int8 images of
//           one pixel in layout number Y_LAYOUT; table: 256 int32 numbers, the number for -128 first; one
//           table for all channels (`count` is 1), or one for each channel (`count` is c).
// Threads   a workgroup adds the pixels of four channels of one image. Each invocation adds every LOCAL_X-th
//           pixel. Then the invocations reduce in shared memory; each iteration halves the number of active
//           invocations.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
layout(constant_id = 2) const int Y_LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer Table { int table[]; };
layout(set = 0, binding = 2) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint n, c, h, w, c4;
  uint count;
  int y_zero;
  float multiplier;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "requantize.glslh"
#include "exact_sum.glslh"
#include "layout/any.glslh"

shared ivec4 high[LOCAL_X];
shared ivec4 low[LOCAL_X];

// Return the float32 nearest to high * 2^14 + low.
float total_of(int high_, int low_) {
  int top, bottom;
  imulExtended(high_, 1 << 14, top, bottom);
  uint carry, least = uaddCarry(uint(bottom), uint(low_), carry);
  int most = top + int(carry);  // no borrow, because low_ >= 0
  bool negative = most < 0;
  if (negative) {
    least = ~least + 1u;
    most = ~most + int(least == 0u);
  }
  uint sign_ = negative ? 0x80000000u : 0u;
  if (most == 0 && least == 0u) return 0.0;
  if (most == 0 && least < 0x80000000u) return compose(sign_, 150, least, false);
  int shift = (most != 0 ? 32 + findMSB(most) : 31) - 29;  // so that 30 bits remain
  uint kept = (least >> shift) | (uint(most) << (32 - shift));
  return compose(sign_, 150 + shift, kept, (least & ((1u << shift) - 1u)) != 0u);
}

void main() {
  uint block = workgroup_index(), me = gl_LocalInvocationID.x, pixels = p.h * p.w;
  uvec4 e = uvec4(block / p.c4, block % p.c4 * 4u, 0u, 0u), extent = uvec4(p.n, p.c, p.h, p.w);
  ivec4 above = ivec4(0), below = ivec4(0);
  for (uint i = me; i < pixels; i += LOCAL_X) {
    e.z = i / p.w;
    e.w = i - e.z * p.w;
    ivec4 q = int8x4_unpack(x[any_layout_word(LAYOUT, e, extent)]);
    [[unroll]] for (uint lane = 0u; lane < 4u; lane++) {
      int value = table[min(e.y + lane, p.count - 1u) * 256u + uint(q[lane] + 128)];
      above[lane] += value >> 14;
      below[lane] += value & 0x3fff;
    }
  }
  high[me] = above;
  low[me] = below;
  barrier();
  for (uint half_ = LOCAL_X / 2u; half_ > 0u; half_ /= 2u) {
    if (me < half_) {
      high[me] += high[me + half_];
      low[me] += low[me + half_];
    }
    barrier();
  }
  if (me == 0u) {
    ivec4 q;
    [[unroll]] for (int i = 0; i < 4; i++) {
      float scaled = clamp(multiply(total_of(high[0][i], low[0][i]), p.multiplier), -512.0, 512.0);
      q[i] = clamp(round_to_int(scaled) + p.y_zero, -128, 127);
    }
    y[any_layout_word(Y_LAYOUT, uvec4(e.xy, 0u, 0u), uvec4(p.n, p.c, 1u, 1u))] = int8x4_pack(q);
  }
}
