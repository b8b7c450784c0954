// The axes of int8 images in another order, where other elements than channels come into the lanes: axis i
// of y is axis ORDER_i of x, ORDER_1 not 1.
//
// Words of x hold four channels, words of y four elements along x's axis ORDER_1: four words of the one are
// four of the other, their bytes transposed.
//
// Memory    x: words; y: vectors of kPackedInt8_16C, or words of kPackedInt8_4W4C (pixels.glslh).
// Threads   one invocation moves four channels of 16 elements (kPackedInt8_16C) or of four along that axis,
//           its neighbours what lies beside in x.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const uint ORDER_0 = 0;
layout(constant_id = 2) const uint ORDER_1 = 2;
layout(constant_id = 3) const uint ORDER_2 = 3;
layout(constant_id = 4) const uint ORDER_3 = 1;

#if BLOCKED
#define Element ivec4
#else
#define Element int
#endif
layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { Element y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint threads;
  uint n, c, h, w;  // of x
} p;

#include "workgroup.glslh"
#include "pixels.glslh"
#include "transposed4x4.glslh"

const uint LANES = VECTOR_CHANNELS;

uvec4 ordered(uvec4 v) { return uvec4(v[ORDER_0], v[ORDER_1], v[ORDER_2], v[ORDER_3]); }

uint word_of(uvec4 e) {
  Pixels at = Pixels(e.x, e.y / VECTOR_CHANNELS, e.z, e.w);
  uint vector = vector_of(at, uvec4(p.n, p.c, p.h, p.w));
  return 4u * vector + (BLOCKED == 1 ? e.y % 16u / 4u : e.w % 4u);
}

// The first element of x that an invocation moves.
uvec4 first_of(uint i) {
  uvec4 runs = uvec4(p.n, p.c, p.h, p.w);  // of LANES elements along the axis
  runs[ORDER_1] = ceil_div(runs[ORDER_1], LANES);
  uvec4 e;
#if BLOCKED
  uint pixel = i / 4u, line = pixel / runs.w, plane = line / runs.z, block = plane / runs.x;
  e = uvec4(plane - block * runs.x, 16u * block + 4u * (i % 4u), line - plane * runs.z,
      pixel - line * runs.w);
#else
  uint step_ = ORDER_1 == 3u ? 1u : 4u, word = i / step_, c4 = ceil_div(p.c, 4u), column = word / c4;
  uint columns = ceil_div(runs.w, step_), line = column / columns, image = line / runs.z;
  e = uvec4(image, 4u * (word - column * c4), line - image * runs.z,
      step_ * (column - line * columns) + i % step_);
#endif
  e[ORDER_1] *= LANES;
  return e;
}

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uvec4 size = uvec4(p.n, p.c, p.h, p.w), e = first_of(i), y_size = ordered(size);
  if (i < p.threads && e.y < p.c && e.w < p.w) {
    ivec4 moved[LANES / 4u];  // [four along the axis][channel]
    [[unroll]] for (uint run = 0u; run < LANES / 4u; run++) {
      ivec4 words;
      [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uvec4 from = e;
        from[ORDER_1] = min(e[ORDER_1] + 4u * run + k, size[ORDER_1] - 1u);
        words[k] = x[word_of(from)];
      }
      moved[run] = transposed4x4(words);
    }
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
      uvec4 to = e;
      to.y += k;
      if (to.y < p.c) {
        to = ordered(to);
        Pixels at = Pixels(to.x, to.y / VECTOR_CHANNELS, to.z, to.w);
#if BLOCKED
        y[vector_of(at, y_size)] = ivec4(moved[0][k], moved[1][k], moved[2][k], moved[3][k]);
#else
        y[4u * vector_of(at, y_size) + to.w % 4u] = moved[0][k];
#endif
      }
    }
  }
}
