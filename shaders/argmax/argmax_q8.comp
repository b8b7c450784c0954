// Find the index of the largest or smallest number along an axis. Of equal numbers, the first is found or,
// with `later`, the last.
//
// Memory    x: Int8x4 words in any layout; y: int32 indices, row-major.
// Threads   THREADS invocations (a power of two) find one index. Each invocation reads every THREADS-th
//           number. Then the invocations reduce in shared memory; each iteration halves the number of active
//           invocations.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
layout(constant_id = 2) const uint THREADS = 1;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;               // number of indices to find
  uint steps, inner;        // steps: numbers along the axis; inner: product of the later axes
  int sign;                 // 1: find the largest; -1: find the smallest
  int later;                // 1: take the last of equal numbers; 0: take the first
  uint x_n, x_c, x_h, x_w;  // shape of x
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

shared ivec2 found[LOCAL_X];  // for each invocation: the best number so far, and its index

bool is_better(ivec2 a, ivec2 b) {
  return a.x > b.x || (a.x == b.x && (p.later == 1 ? a.y > b.y : a.y < b.y));
}

void main() {
  uint me = gl_LocalInvocationID.x, t = me % THREADS, i = (workgroup_index() * LOCAL_X + me) / THREADS;
  uvec4 extent = uvec4(p.x_n, p.x_c, p.x_h, p.x_w);
  uint first = i / p.inner * p.steps * p.inner + i % p.inner;
  ivec2 best = ivec2(-129, 0);
  if (i < p.count)
    for (uint k = t; k < p.steps; k += THREADS) {
      uvec4 e = from_row_major(first + k * p.inner, extent);
      int lane = int8x4_lane(x[any_layout_word(LAYOUT, e, extent)], any_layout_lane(LAYOUT, e));
      ivec2 one = ivec2(p.sign * lane, int(k));
      if (is_better(one, best)) best = one;
    }
  if (THREADS > 1u) {
    found[me] = best;
    for (uint half_ = THREADS / 2u; half_ > 0u; half_ /= 2u) {
      barrier();
      if (t < half_ && is_better(found[me + half_], found[me])) found[me] = found[me + half_];
    }
    best = found[me];
  }
  if (t == 0u && i < p.count) y[i] = best.y;
}
