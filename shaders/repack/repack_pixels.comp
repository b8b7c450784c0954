// Copy int8 images from kPackedInt8_4W4C to kPackedInt8_16C (BLOCKED) or back.
//
// Memory    x: int8 words in the layout to convert; y: int8 vectors (pixels.glslh) in the new layout.
// Threads   one invocation writes one vector, which it gathers from 64 contiguous bytes of x; three
//           neighbouring invocations read the rest of these bytes.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint vectors;
  uint n, c, h, w;
} p;

#include "workgroup.glslh"
#include "pixels.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.vectors) {
    Pixels at = pixels_of(i, uvec4(p.n, p.c, p.h, p.w));
    uint c4 = ceil_div(p.c, 4u);
    ivec4 words;
#if BLOCKED
    uint first = 4u * ((at.image * p.h + at.h) * ceil_div(p.w, 4u) + at.w / 4u) * c4 + at.w % 4u;
    [[unroll]] for (uint k = 0u; k < 4u; k++) words[k] = x[first + 4u * min(4u * at.block + k, c4 - 1u)];
#else
    uint first = ((at.block / 4u * p.n + at.image) * p.h + at.h) * p.w;
    [[unroll]] for (uint k = 0u; k < 4u; k++)
      words[k] = x[4u * (first + min(at.w + k, p.w - 1u)) + at.block % 4u];
#endif
    y[i] = words;
  }
}
