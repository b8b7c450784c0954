// Compute the compensated (Neumaier) sum of each row of float32 numbers, each operation rounded to nearest
// even. The error is at most 2^-23 of the sum of magnitudes, as long as an invocation adds fewer than 2^20
// numbers.
//
// Memory    x: float32 rows, contiguous; y: float32, `parts` partial sums for each row, contiguous.
// Threads   THREADS invocations (a power of two) compute a sum together. Each invocation adds every
//           THREADS-th element. Then the invocations reduce in shared memory; each iteration halves the
//           number of active invocations. The order of additions depends on the push constants and THREADS
//           only.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const uint THREADS = 1;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint rows, columns;
  uint parts;  // partial sums of a row; sum i adds blocks i, i + parts, ... of THREADS elements
} p;

#include "workgroup.glslh"
#include "exact_sum.glslh"

shared vec2 shares[LOCAL_X];

// Add a number to a pair: x is the total, y the sum of the total's rounding errors.
vec2 added(vec2 so_far, float v) {
  float next = sum(so_far.x, v);
  bool larger = abs(so_far.x) >= abs(v);
  float lost = sum(sum(larger ? so_far.x : v, -next), larger ? v : so_far.x);
  return vec2(next, sum(so_far.y, lost));
}

float result_of(vec2 share) {
  bool finite = (floatBitsToUint(share.x) & FLOAT_INFINITY) != FLOAT_INFINITY;
  return finite ? sum(share.x, share.y) : share.x;  // an infinite total has the rounding error NaN
}

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
