// Write the im2col matrix of an int8 convolution: a row for each output pixel, a column for each filter tap
// and channel. Pixels of padding are x_zero_point. WHOLE_WORDS: every group has a multiple of four channels,
// so four columns are one word of the input.
//
// Memory    x: int8 in kPackedInt8_4W4C; y: int8 in kPackedInt8_4H4W blocks [group][m4][k4], for the rows of
//           one chunk of output pixels.
// Threads   one invocation writes one block (4 rows x 4 k); neighbouring invocations write neighbouring
//           blocks along k.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "int8x4.glslh"
#define DIVISORS
#include "conv_window.glslh"
#include "layout/kPackedInt8_4W4C.glslh"

bool inside(Pixel at, Tap tap) {
  return at.image < p.images && tap.channel < p.c && uint(at.h + tap.h) < p.h && uint(at.w + tap.w) < p.w;
}

uvec4 element(Pixel at, Tap tap) { return uvec4(at.image, tap.channel, at.h + tap.h, at.w + tap.w); }

void main() {
  uint block = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uint run = DIVIDED(block, p.k4, run), k4 = block - run * p.k4;
  uint group = DIVIDED(run, p.m4, group), m4 = run - group * p.m4;
  uvec4 extent = uvec4(p.images, p.c, p.h, p.w);
  ivec4 words = ivec4(int8x4_broadcast(p.x_zero_point));
  Pixel at[4];  // the pixels of a line of y are padded to whole blocks of four
  at[0] = window_of_row(4u * (p.first_m4 + m4));
  [[unroll]] for (int r = 1; r < 4; r++) at[r] = Pixel(at[0].image, at[0].h, at[r - 1].w + int(p.stride_w));
#if WHOLE_WORDS
  Tap tap = tap_of_column(4u * k4, group);
  [[unroll]] for (int r = 0; r < 4; r++)
    if (inside(at[r], tap)) words[r] = x[kPackedInt8_4W4C_word(element(at[r], tap), extent)];
#else
  [[unroll]] for (uint b = 0u; b < 4u; b++) {
    Tap tap = tap_of_column(4u * k4 + b, group);
    [[unroll]] for (int r = 0; r < 4; r++) {
      if (!inside(at[r], tap)) continue;
      uvec4 e = element(at[r], tap);
      words[r] = bitfieldInsert(words[r],
          int8x4_lane(x[kPackedInt8_4W4C_word(e, extent)], kPackedInt8_4W4C_lane(e)), int(8u * b), 8);
    }
  }
#endif
  if (group < p.groups) y[block] = words;
}
