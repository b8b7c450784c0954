// Softmax of int8 rows: y = e / sum(e), e = table[max(x) - x], the table holding exp(-d * x_scale) * 2^30 as
// integers: the sum is exact, so every device has the same bits. Then float32(e) * (1 / float32(sum)), each
// step rounded to nearest even.
//   OUT_F32   y as it is, row-major
//   OUT_Q8    saturate(round_half_even(y / y_scale) + y_zero), in the layout of x
//
// Memory    x: Int8x4 words in the layout of number LAYOUT, whose lanes lie along AXIS (1 is c, 3 is w);
//           table: 256 numbers.
// Threads   THREADS invocations share a row, LOCAL_X / THREADS rows a workgroup, side by side: in
//           kPackedInt8_4H4W four rows are. Maximum and sum are halved in shared memory.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OUT_F32 0
#define OUT_Q8 1

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
layout(constant_id = 2) const uint THREADS = 64;
layout(constant_id = 3) const uint AXIS = 3;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer Table { int table[]; };
#if OUT == OUT_F32
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
#else
layout(set = 0, binding = 2) writeonly buffer Y { int y[]; };
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint rows, n, c, h, w;
  float scale;            // of y, and what goes with it: int8 output only
  int zero_point;
  float inverse, low, high, safe;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "exact_sum.glslh"
#if OUT == OUT_Q8
#include "quantized.glslh"
#endif
#include "layout/any.glslh"

const uint ROWS = LOCAL_X / THREADS;  // of a workgroup
shared int most[LOCAL_X];
shared uvec2 sums[LOCAL_X];  // low, high

uvec4 extent() { return uvec4(p.n, p.c, p.h, p.w); }
uint length_() { return AXIS == 1u ? p.c : p.w; }

// The first element of a row.
uvec4 begin_of(uint row) {
  if (AXIS == 1u) return from_row_major(row, uvec4(p.n, 1u, p.h, p.w));
  return from_row_major(row, uvec4(p.n, p.c, p.h, 1u));
}

uvec4 along(uvec4 e, uint i) {
  if (AXIS == 1u) e.y = i; else e.w = i;
  return e;
}

uvec2 add_wide(uvec2 a, uvec2 b) {
  uint carry, low = uaddCarry(a.x, b.x, carry);
  return uvec2(low, a.y + b.y + carry);
}

// The float32 nearest to a sum, which is at least 2^30.
float wide_to_float(uvec2 v) {
  int shift = (v.y != 0u ? 32 + findMSB(v.y) : findMSB(v.x)) - 29;  // 30 bits stay
  uint kept = shift < 32 ? (v.x >> shift) | (v.y << (32 - shift)) : v.y >> (shift - 32);
  bool rest = shift < 32 ? (v.x & ((1u << shift) - 1u)) != 0u
                         : v.x != 0u || (v.y & ((1u << (shift - 32)) - 1u)) != 0u;
  return compose(0u, 150 + shift, kept, rest);
}

void store(uvec4 e, uint count, ivec4 q, int top, float inverse) {
  vec4 result = vec4(0.0);
  [[unroll]] for (uint i = 0u; i < 4u; i++) {
    if (i < count) result[i] = multiply(int_to_float(table[top - q[i]]), inverse);
  }
#if OUT == OUT_F32
  [[unroll]] for (uint i = 0u; i < 4u; i++) {
    if (i < count) y[row_major(along(e, (AXIS == 1u ? e.y : e.w) + i), extent())] = result[i];
  }
#else
  bool sure = true;
  Int8x4 word = quantized_word(floatBitsToUint(result), sure);
  if (!sure) word = exact_word(floatBitsToUint(result));
  y[any_layout_word(LAYOUT, e, extent())] = word;
#endif
}

void main() {
  uint me = gl_LocalInvocationID.x, t = me / ROWS, row = workgroup_index() * ROWS + me % ROWS,
       size = length_();
  uvec4 e = begin_of(min(row, p.rows - 1u));
  int top = -128;
  for (uint i = 4u * t; i < size; i += 4u * THREADS) {
    ivec4 q = int8x4_unpack(x[any_layout_word(LAYOUT, along(e, i), extent())]);
    [[unroll]] for (uint lane = 0u; lane < 4u; lane++) if (i + lane < size) top = max(top, q[lane]);
  }
  most[me] = top;
  barrier();
  for (uint half_ = THREADS / 2u; half_ > 0u; half_ /= 2u) {
    if (t < half_) most[me] = max(most[me], most[me + half_ * ROWS]);
    barrier();
  }
  top = most[me % ROWS];

  uvec2 total = uvec2(0u);
  for (uint i = 4u * t; i < size; i += 4u * THREADS) {
    ivec4 q = int8x4_unpack(x[any_layout_word(LAYOUT, along(e, i), extent())]);
    [[unroll]] for (uint lane = 0u; lane < 4u; lane++)
      if (i + lane < size) total = add_wide(total, uvec2(uint(table[top - q[lane]]), 0u));
  }
  sums[me] = total;
  barrier();
  for (uint half_ = THREADS / 2u; half_ > 0u; half_ /= 2u) {
    if (t < half_) sums[me] = add_wide(sums[me], sums[me + half_ * ROWS]);
    barrier();
  }
  float inverse = quotient(1.0, wide_to_float(sums[me % ROWS]));
  if (row < p.rows) {
    for (uint i = 4u * t; i < size; i += 4u * THREADS) {
      ivec4 q = int8x4_unpack(x[any_layout_word(LAYOUT, along(e, i), extent())]);
      store(along(e, i), min(size - i, 4u), q, top, inverse);
    }
  }
}
