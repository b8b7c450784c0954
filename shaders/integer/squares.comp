// Sum the squares of an image's numbers over every window, along one axis at a time, in 64 bits:
//
//   AXIS 0   y[n, line, ox] = sum_{c, kx} x[n, c, line - pad_h, ox + kx - pad_w]^2
//   AXIS 1   y[n, oy, ox] = sum_ky x[n, oy + ky, ox]; x is the result of AXIS 0
//
// Memory    x: integers of images (integer_numbers.glslh), or (AXIS 1) int64 as low and high word. y: int64
//           as low and high word.
// Threads   one invocation computes SEGMENT neighbouring sums. From one sum to the next, it adds the number
//           that enters the window and subtracts the number that leaves it. Differences modulo 2^64 are
//           exact.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

#if AXIS == 0
layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { uvec2 x[]; };
#endif
layout(set = 0, binding = 1) writeonly buffer Y { uvec2 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint images, channels, h, w;         // shape of x
  uint first_image, count;             // index of the first image, and number of images
  uint lines, columns, taps, segments; // lines, columns: shape of y; taps in a window; segments in a line
  int pad_h, pad_w;
} p;

#include "workgroup.glslh"

#define SEGMENT 32u

uvec2 add(uvec2 a, uvec2 b) {
  uint carry, low = uaddCarry(a.x, b.x, carry);
  return uvec2(low, a.y + b.y + carry);
}

uvec2 negative(uvec2 a) { return add(~a, uvec2(1u, 0u)); }

#if AXIS == 0
#include "integer_numbers.glslh"
// Return element i of a line: the sum of the squares of its channels, or 0 if the element is padding.
uvec2 element(uint image, uint line, uint i) {
  uvec2 sum = uvec2(0u);
  uint row = uint(int(line) - p.pad_h), column = uint(int(i) - p.pad_w);
  if (row < p.h && column < p.w) {
    for (uint channel = 0u; channel < p.channels; channel++) {
      uint magnitude = uint(abs(number(p.first_image + image, channel, row, column)));
      uvec2 square;
      umulExtended(magnitude, magnitude, square.y, square.x);
      sum = add(sum, square);
    }
  }
  return sum;
}
#else
uvec2 element(uint image, uint column, uint i) {
  return x[(image * (p.lines + p.taps - 1u) + i) * p.columns + column];
}
#endif

void main() {
  uint id = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  // across: number of neighbouring lines along the axis; along: length of a line
#if AXIS == 0
  uint across = p.lines, along = p.columns;
#else
  uint across = p.columns, along = p.lines;
#endif
  uint line = id % across, segment = id / across % p.segments, image = id / across / p.segments;
  if (image < p.count) {
    uvec2 sum = uvec2(0u);
    uint first = segment * SEGMENT;
    for (uint i = 0u; i < p.taps; i++) sum = add(sum, element(image, line, first + i));
    for (uint i = first; i < min(first + SEGMENT, along); i++) {
#if AXIS == 0
      y[(image * p.lines + line) * p.columns + i] = sum;
#else
      y[(image * p.lines + i) * p.columns + line] = sum;
#endif
      if (i + 1u < along)
        sum = add(add(sum, element(image, line, i + p.taps)), negative(element(image, line, i)));
    }
  }
}
