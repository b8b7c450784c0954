// One float32 number for each row of x: its sum, or (rows of one number) a square root or a conversion.
//   SUM   compensated (Neumaier), each step rounded to nearest even. The error is at most 2^-23 of the sum of
//         magnitudes, as long as an invocation adds fewer than 2^20 numbers
//   SQRT  of a float32 number, rounded to nearest even: digit by digit in integers, because no device
//         promises this rounding
//   CAST  of an int32 number, rounded to nearest even
//
// Memory    x: rows, contiguous; y: one number a row, or (SUM) `parts` partial sums a row, contiguous.
// Threads   one invocation computes one number. SUM: THREADS (a power of two) invocations share a number;
//           each adds every THREADS-th element, then they reduce in shared memory, halving the number of
//           active invocations. The order of additions depends on p and THREADS only.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OP_SUM 0
#define OP_SQRT 1
#define OP_CAST 2

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
#if OP == OP_SUM
layout(constant_id = 1) const uint THREADS = 1;
#endif

#if OP == OP_CAST
layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#endif
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint rows, columns;
#if OP == OP_SUM
  uint parts;  // partial sums of a row; part i adds runs i, i + parts, ... of THREADS elements
#endif
} p;

#include "workgroup.glslh"
#include "exact_sum.glslh"

#if OP == OP_CAST
float result_of(uint row) { return int_to_float(x[row]); }
#elif OP == OP_SQRT
float result_of(uint row) {
  uint bits = floatBitsToUint(x[row]);
  if (bits << 1 == 0u || bits == FLOAT_INFINITY) return x[row];  // -0 is its own root
  if (bits > FLOAT_INFINITY) return uintBitsToFloat(0x7fc00000u);
  Scaled n = normalized(bits);
  int exponent = n.exponent - 127;
  // The radicand is a 52-bit number times 2^-50, 1 <= radicand < 4, and its exponent even; highest bits
  // first.
  bool odd = (exponent & 1) != 0;
  uint m = n.significand, root = 0u, rest = 0u;
  int place = odd ? 28 : 27;
  for (int at = 50; at >= 0; at -= 2) {
    int right = at - place;
    uint two = right >= 0 ? (m >> uint(right)) & 3u : right == -1 ? (m << 1) & 3u : 0u;
    rest = (rest << 2) | two;
    uint trial = (root << 2) | 1u;
    root <<= 1;
    if (rest >= trial) { rest -= trial; root |= 1u; }
  }
  return compose(0u, (exponent - int(odd)) / 2 + 125, root, rest != 0u);
}
#else
shared vec2 shares[LOCAL_X];

// Add a number to (total, roundoff that the total lost).
vec2 added(vec2 so_far, float v) {
  float next = sum(so_far.x, v);
  bool larger = abs(so_far.x) >= abs(v);
  float lost = sum(sum(larger ? so_far.x : v, -next), larger ? v : so_far.x);
  return vec2(next, sum(so_far.y, lost));
}

float result_of(vec2 share) {
  bool finite = (floatBitsToUint(share.x) & FLOAT_INFINITY) != FLOAT_INFINITY;
  return finite ? sum(share.x, share.y) : share.x;  // the roundoff of an infinity is NaN
}
#endif

#if OP == OP_SUM
void main() {
  uint me = gl_LocalInvocationID.x, t = me % THREADS, place = (workgroup_index() * LOCAL_X + me) / THREADS;
  uint row = place / p.parts, part = place - row * p.parts;
  vec2 share = vec2(0.0);
  if (row < p.rows)
    for (uint k = part * THREADS + t; k < p.columns; k += p.parts * THREADS)
      share = added(share, x[row * p.columns + k]);
  shares[me] = share;
  for (uint half_ = THREADS / 2u; half_ > 0u; half_ /= 2u) {
    barrier();
    if (t < half_) {
      vec2 other = shares[me + half_];
      share = added(share, other.x);
      share.y = sum(share.y, other.y);
      shares[me] = share;
    }
  }
  if (t == 0u && row < p.rows) y[place] = result_of(share);
}
#else
void main() {
  uint row = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (row < p.rows) y[row] = result_of(row);
}
#endif
