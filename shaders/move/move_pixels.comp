// Move int8 images by whole pixels and whole blocks of channels: pad, crop, or copy one input of a
// concatenation (KEEP: the rest of y is left unchanged).
//   y[n, block, h, w] = x[n - before_n, block - before_block, h - before_h, w - before_w], or `fill`
//
// Memory    x: int8, read as words, or in kPackedInt8_16C as vectors; y: int8, written as vectors of pixels
//           (pixels.glslh).
// Threads   one invocation writes one vector of y, or (KEEP) one vector of the part of y that comes from x.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(constant_id = 1) const bool KEEP = false;

#if BLOCKED
#define Element ivec4
#else
#define Element int
#endif
layout(set = 0, binding = 0) readonly buffer X { Element x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint vectors;
  int fill;
  uint y_n, y_c, y_h, y_w, x_n, x_c, x_h, x_w;
  int before_n, before_block, before_h, before_w;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "pixels.glslh"

uvec4 x_size() { return uvec4(p.x_n, p.x_c, p.x_h, p.x_w); }

// Return pixel w of x, or `fill` if the pixel is outside x.
Element pixel(Pixels at, uint w) {
  bool inside = at.image < p.x_n && at.block < blocks_of(p.x_c) && at.h < p.x_h && w < p.x_w;
  at.w = w;
  uint vector = inside ? vector_of(at, x_size()) : 0u;
#if BLOCKED
  Element read = x[vector];
#else
  Element read = x[4u * vector + (inside ? w % 4u : 0u)];
#endif
  return inside ? read : Element(int8x4_broadcast(p.fill));
}

Pixels moved(Pixels at, int sign_) {
  return Pixels(at.image + sign_ * p.before_n, at.block + sign_ * p.before_block, at.h + sign_ * p.before_h,
      at.w + sign_ * p.before_w);
}

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.vectors) {
    uvec4 y_size = uvec4(p.y_n, p.y_c, p.y_h, p.y_w);
    Pixels at = pixels_of(i, KEEP ? x_size() : y_size), from = at;
    if (!KEEP) from = moved(at, -1);
#if BLOCKED
    ivec4 words = pixel(from, from.w);
#else
    ivec4 words;
    [[unroll]] for (uint k = 0u; k < 4u; k++) words[k] = pixel(from, from.w + k);
#endif
    y[vector_of(KEEP ? moved(at, 1) : at, y_size)] = words;
  }
}
