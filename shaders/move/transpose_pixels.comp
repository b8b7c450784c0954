// Permute the axes of int8 images: axis i of y is axis ORDER_i of x. ORDER_1 is not 1, so a word of y holds
// four elements along an axis of x other than its channels.
//
// A word of x holds four channels; a word of y holds four elements along x's axis ORDER_1. So four words of y
// are four words of x with their bytes transposed.
//
// Memory    x: int8 words; y: int8, written as vectors of pixels (pixels.glslh).
// Threads   in kPackedInt8_16C, one invocation moves four channels of 16 elements along axis ORDER_1, and
//           neighbouring invocations read neighbouring words of x. In kPackedInt8_4W4C, one invocation moves
//           16 channels of four elements along that axis, and neighbouring invocations write neighbouring
//           words of y. So whole cache lines are read and written.
// Needs     in kPackedInt8_16C, if the channels of x become lines of y: shared memory and a barrier.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const uint ORDER_0 = 0;
layout(constant_id = 2) const uint ORDER_1 = 2;
layout(constant_id = 3) const uint ORDER_2 = 3;
layout(constant_id = 4) const uint ORDER_3 = 1;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint threads;
  uint n, c, h, w;  // shape of x
} p;

#include "workgroup.glslh"
#include "pixels.glslh"
#include "transposed4x4.glslh"

uvec4 ordered(uvec4 v) { return uvec4(v[ORDER_0], v[ORDER_1], v[ORDER_2], v[ORDER_3]); }

uint word_of(uvec4 e) {
  Pixels at = Pixels(e.x, e.y / VECTOR_CHANNELS, e.z, e.w);
  uint vector = vector_of(at, uvec4(p.n, p.c, p.h, p.w));
  return 4u * vector + (BLOCKED == 1 ? e.y % 16u / 4u : e.w % 4u);
}

#if BLOCKED
// Return the indices (n, c, h, w) of the first element of x that invocation i moves.
uvec4 first_of(uint i) {
  uvec4 runs = uvec4(p.n, p.c, p.h, p.w);  // numbers of elements; along axis ORDER_1, number of blocks of 16
  runs[ORDER_1] = ceil_div(runs[ORDER_1], 16u);
  uint pixel = i / 4u, line = pixel / runs.w, plane = line / runs.z, block = plane / runs.x;
  uvec4 e = uvec4(plane - block * runs.x, 16u * block + 4u * (i % 4u), line - plane * runs.z,
      pixel - line * runs.w);
  e[ORDER_1] *= 16u;
  return e;
}
#else
const uint COLUMNS = ORDER_1 == 3u ? 1u : 4u;  // number of invocations whose columns form a vector
const uint NEXT = ORDER_1 == 3u ? 2u : 3u, LAST = ORDER_1 == 0u ? 2u : 0u;  // the other two axes

uvec4 first_of(uint i) {
  uvec4 counts = uvec4(p.n, ceil_div(p.c, 16u), p.h, ceil_div(p.w, COLUMNS)), e;
  counts[ORDER_1] = ceil_div(counts[ORDER_1], 4u);
  uint vector = i / COLUMNS, run = vector / counts[ORDER_1], block = run / counts.y,
       others = block / counts[NEXT];
  e[ORDER_1] = 4u * (vector - run * counts[ORDER_1]);
  e.y = 16u * (run - block * counts.y);
  e[NEXT] = block - others * counts[NEXT];
  e[LAST] = others;
  if (COLUMNS == 4u) e.w = 4u * e.w + i % 4u;
  return e;
}
#endif

// Return the index of the vector of y that holds element e of x.
uint place_of(uvec4 e) {
  uvec4 to = ordered(e);
  return vector_of(Pixels(to.x, to.y / VECTOR_CHANNELS, to.z, to.w), ordered(uvec4(p.n, p.c, p.h, p.w)));
}

#if BLOCKED
// If the channels of x become lines of y, invocations exchange their vectors through shared memory, so that
// neighbouring invocations store neighbouring vectors.
const bool SIDE_BY_SIDE = ORDER_3 == 1u;
shared ivec4 staged[SIDE_BY_SIDE ? 4u * LOCAL_X : 1u];
// for each invocation: the index in y of its first vector, and the number of channels left
shared uvec2 places[SIDE_BY_SIDE ? LOCAL_X : 1u];

// Return the index in shared memory of vector k of an invocation, so that vectors k of neighbouring
// invocations are in different banks.
uint staged_at(uint invocation, uint k) { return 4u * invocation + (k ^ (invocation >> 1 & 3u)); }

void store_staged(uint me) {
  barrier();
  [[unroll]] for (uint r = 0u; r < 4u; r++) {
    uint from = r * (LOCAL_X / 4u) + me / 4u, k = me % 4u;
    if (k < places[from].y) y[places[from].x + k] = staged[staged_at(from, k)];
  }
}
#endif

// Load four words from element e on and return them with their bytes transposed. `run` counts blocks of
// four elements along axis ORDER_1 (kPackedInt8_16C), or blocks of four channels (kPackedInt8_4W4C).
ivec4 moved(uvec4 e, uint run) {
  uvec4 size = uvec4(p.n, p.c, p.h, p.w);
  ivec4 words;
  [[unroll]] for (uint k = 0u; k < 4u; k++) {
    uvec4 from = e;
    from[ORDER_1] = min(e[ORDER_1] + (BLOCKED == 1 ? 4u * run : 0u) + k, size[ORDER_1] - 1u);
    if (BLOCKED == 0) from.y = min(e.y + 4u * run, p.c - 1u);
    words[k] = x[word_of(from)];
  }
  return transposed4x4(words);
}

#if !BLOCKED
// Store the transposed words of four channels: block `run` of channels from element e on.
void store_run(uvec4 e, uint run, ivec4 words) {
  e.y += 4u * run;
  if (ORDER_3 == 1u) {
    if (e.y < p.c) y[place_of(e)] = words;
  } else {
    [[unroll]] for (uint k = 0u; k < 4u; k++, e.y++)
      if (e.y < p.c) y[place_of(e)][ordered(e).w % 4u] = words[k];
  }
}
#endif

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 e = first_of(i);
#if BLOCKED
  uint me = gl_LocalInvocationID.x;
  if (SIDE_BY_SIDE) places[me] = uvec2(0u);
#endif
  if (i < p.threads && e.y < p.c && e.w < p.w) {
    // Use four variables: some drivers keep an array in memory if a loop indexes it.
    ivec4 first = moved(e, 0u), second = moved(e, 1u), third = moved(e, 2u), fourth = moved(e, 3u);
#if BLOCKED
    if (SIDE_BY_SIDE) places[me] = uvec2(place_of(e), p.c - e.y);
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
      ivec4 vector = ivec4(first[k], second[k], third[k], fourth[k]);
      uvec4 to = e;
      to.y += k;
      if (SIDE_BY_SIDE) staged[staged_at(me, k)] = vector;
      else if (to.y < p.c) y[place_of(to)] = vector;
    }
#else
    store_run(e, 0u, first);
    store_run(e, 1u, second);
    store_run(e, 2u, third);
    store_run(e, 3u, fourth);
#endif
  }
#if BLOCKED
  if (SIDE_BY_SIDE) store_staged(me);
#endif
}
