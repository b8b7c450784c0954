// Multiply transformed images by transformed templates: z[n,t] = factor * sum_c x[n,c] * w[t,c] modulo a
// prime. The factor is the inverse of the transforms' length.
//
// Memory    uint32: x: [image][channel][block][element], w: [template][channel][element], z:
//           [image][template][block][element].
// Threads   one invocation computes one element of z.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly buffer W { uint w[]; };
layout(set = 0, binding = 2) writeonly buffer Z { uint z[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint elements, blocks, templates, channels, images;
  uint prime, inverse, factor;  // inverse: 1 / prime modulo 2^32; factor: the formula's factor times 2^64
} p;

#include "workgroup.glslh"
#include "modular.glslh"

void main() {
  uint id = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uint block_size = p.blocks * p.elements, at = id % block_size, i = at % p.elements;
  uint map = id / block_size, t = map % p.templates, image = map / p.templates;
  if (image < p.images) {
    uint sum = 0u;
    for (uint c = 0u; c < p.channels; c++) {
      uint value = x[(image * p.channels + c) * block_size + at];
      sum = add(sum, multiply(value, w[(t * p.channels + c) * p.elements + i]));
    }
    z[id] = multiply(sum, p.factor);
  }
}
