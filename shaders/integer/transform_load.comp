// Copy blocks of images, or templates, modulo a prime, for the number-theoretic transform
// (transform_pass.comp).
//
// Memory    x: integers of images (integer_numbers.glslh). y: uint32 [image][channel][block row][block
//           column][SIZE_H][SIZE_W]. Block (i, j) of an image begins at row i * step_h - pad_h and column j *
//           step_w - pad_w; elements outside the image are 0. With FLIPPED, a template's tap (ky, kx) is
//           stored at (-ky, -kx) modulo the size, so that the cyclic convolution becomes a correlation.
// Threads   one invocation writes one element of y.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 5) const bool FLIPPED = false;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { uint y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint images, channels, h, w;  // shape of x
  uint first_image, count;      // index of the first image, and number of images
  uint size_h, size_w, blocks_h, blocks_w, step_h, step_w;
  int pad_h, pad_w;
  uint prime;
} p;

#include "workgroup.glslh"
#include "integer_numbers.glslh"

uint split(inout uint i, uint size) {
  uint at = i % size;
  i /= size;
  return at;
}

void main() {
  uint id = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x, i = id;
  uint column = split(i, p.size_w), row = split(i, p.size_h), block_w = split(i, p.blocks_w);
  uint block_h = split(i, p.blocks_h), channel = split(i, p.channels);
  if (i < p.count) {
    uint from_h = block_h * p.step_h + row - uint(p.pad_h);
    uint from_w = block_w * p.step_w + column - uint(p.pad_w);
    if (FLIPPED) {
      from_h = (p.size_h - row) % p.size_h;
      from_w = (p.size_w - column) % p.size_w;
    }
    int value = from_h < p.h && from_w < p.w ? number(p.first_image + i, channel, from_h, from_w) : 0;
    uint rest = uint(abs(value)) % p.prime;
    y[id] = value < 0 && rest > 0u ? p.prime - rest : rest;
  }
}
