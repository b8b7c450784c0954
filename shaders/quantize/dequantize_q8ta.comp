// y = (x - zero_point) * scale, rounded once: ONNX DequantizeLinear per tensor.
//
// Memory    x: Int8x4 words in layout number LAYOUT; y: float32, row-major.
// Threads   one invocation writes one element.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint elements;
  uint n, c, h, w;
  float scale;
  int zero_point;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "exact_float.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.elements) {
    uvec4 extent = uvec4(p.n, p.c, p.h, p.w), e = from_row_major(i, extent);
    int q = int8x4_lane(x[any_layout_word(LAYOUT, e, extent)], any_layout_lane(LAYOUT, e));
    y[i] = multiply(float(q - p.zero_point), p.scale);
  }
}
