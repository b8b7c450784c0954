// Pack images of integers for the exact integer correlations: subtract the smallest value and split the
// numbers into digits (integer/digits.py). For strides and dilations, each sub-image is stored separately
// (integer/phases.py).
//
//   y = digit i of (x - least) with its top bit flipped; x is 0 outside the image
//
// Memory    x: integers of images (integer_numbers.glslh). y: [digit][image][rh][rw][channel][ph][pw][rows]
//           [words], words of 32 / DIGIT_BITS digits along the width. rh, rw: the residue along the height
//           and the width; ph, pw: the phase (integer/phases.py defines both).
// Threads   one invocation packs one word of every digit.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 5) const int DIGIT_BITS = 8;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint words, digits;
  int least;
  uint images, channels, h, w;    // shape of x
  uint first_image;               // index of the first image to pack
  uint residues_h, residues_w, phases_h, phases_w;
  uint rows, row_words, first_row, first_word;
  int stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w, step_h, step_w;
} p;

#include "workgroup.glslh"
#include "integer_numbers.glslh"

// Divide the row-major index `i` by `size`, the length of its last axis; return the remainder.
uint split(inout uint i, uint size) {
  uint at = i % size;
  i /= size;
  return at;
}

void main() {
  uint id = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x, i = id;
  if (id < p.words) {
    uint word = split(i, p.row_words), row = split(i, p.rows), pw = split(i, p.phases_w);
    uint ph = split(i, p.phases_h), channel = split(i, p.channels);
    uint rw = split(i, p.residues_w), rh = split(i, p.residues_h);
    const uint lanes = 32u / uint(DIGIT_BITS);
    int from_h = p.stride_h * int(rh) + p.dilation_h * int(ph) - p.pad_h + int(p.first_row + row) * p.step_h;
    int from_w = p.stride_w * int(rw) + p.dilation_w * int(pw) - p.pad_w;
    uint moved[4];
    [[unroll]] for (uint lane = 0u; lane < lanes; lane++) {
      int column = from_w + int((p.first_word + word) * lanes + lane) * p.step_w;
      bool inside = uint(from_h) < p.h && uint(column) < p.w;
      int value = inside ? number(p.first_image + i, channel, uint(from_h), uint(column)) : 0;
      moved[lane] = uint(value - p.least);
    }
    for (uint digit = 0u; digit < p.digits; digit++) {
      uint packed = 0u;
      [[unroll]] for (uint lane = 0u; lane < lanes; lane++) {
        uint value = bitfieldExtract(moved[lane], int(digit) * DIGIT_BITS, DIGIT_BITS);
        packed |= (value ^ (1u << uint(DIGIT_BITS - 1))) << (lane * uint(DIGIT_BITS));
      }
      y[digit * p.words + id] = int(packed);
    }
  }
}
