// Maximum or mean of a window that slides over int8 images.
//
//   KIND_MAX      y = max x
//   KIND_AVERAGE  y = saturate(round_half_even((sum / count) / y_scale + y_zero)), where sum adds x_scale *
//                 (x - x_zero) in row-major order, every operation rounded to float32. The shader first
//                 computes an exact integer sum and one float product. Only if this product is farther than
//                 `safe` from the nearest integer, and so near a tie, does the shader compute the rounded
//                 operations.
//
// Memory    x, y: int8 images as vectors of pixels (pixels.glslh).
// Threads   one invocation computes one vector of y. For large windows, THREADS = LOCAL_X (a power of two)
//           invocations compute one vector together (large_window.glslh).
#version 450
#extension GL_EXT_control_flow_attributes : require

#define KIND_MAX 0
#define KIND_AVERAGE 1

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
// Kernel size (at most 3) and stride (at most 2) along both axes, for a dilation of 1. KERNEL 0: push
// constants give the sizes of the kernel, the strides and the dilations.
layout(constant_id = 1) const uint KERNEL = 0;
layout(constant_id = 2) const uint STRIDE = 1;
layout(constant_id = 3) const uint ASIDE = 0;  // 4W4C: lane of the first input column in its vector
layout(constant_id = 5) const uint THREADS = 1;
#if KIND == KIND_AVERAGE
// Only with KERNEL > 0: the divisor of every mean is the number of taps, and no possible sum is so near a tie
// that roundings matter.
layout(constant_id = 4) const bool SURE = false;
#endif

#if BLOCKED
#define Element ivec4  // the part of y that is computed at a time
#define WORDS 4        // words in an Element
#else
#define Element int
#define WORDS 1
#endif
layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint vectors;
  uint n, c, x_h, x_w, y_h, y_w;
  uint kernel_h, kernel_w, stride_h, stride_w, pad_t, pad_l, dilation_h, dilation_w;
#if KIND == KIND_AVERAGE
  uint count;             // divisor of every mean; 0: divide by the number of elements inside the image
  int x_zero, y_zero;     // y_zero in the type of y; stored int8 = result - y_shift
  int y_shift, y_min, y_max;
  float x_scale, y_scale, ratio, safe;
#endif
  uint first_multiplier, first_shift, second_multiplier, second_shift, third_multiplier, third_shift;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#define DIVISORS
#include "pixels.glslh"
#if KIND == KIND_AVERAGE
#include "exact_sum.glslh"
#endif

// The input rows or columns under a window: from `first` to `last` - 1, in steps of the dilation.
struct Span { uint first, last; };

Span under(uint out_index, uint stride, uint pad, uint kernel, uint dilation, uint size) {
  int first = int(out_index * stride) - int(pad);
  if (KERNEL > 0u) dilation = 1u;
  uint skipped = first < 0 ? (uint(-first) + dilation - 1u) / dilation : 0u;
  return Span(uint(first + int(skipped * dilation)),
      uint(min(first + int((kernel - 1u) * dilation), int(size) - 1) + 1));
}

// Return the index of the first vector of line h of x; `plane`: the index of the first vector of the image's
// channels.
uint line_of(uint plane, uint h) {
  return plane + h * (BLOCKED == 1 ? p.x_w : ceil_div(p.x_w, 4u) * blocks_of(p.c));
}

// A pixel as integers: 16 channels (BLOCKED) or four.
struct Words { ivec4 lanes[WORDS]; };

Words pixel(uint line, uint w) {
  Words words;
#if BLOCKED
  ivec4 vector = x[line + w];
  [[unroll]] for (int k = 0; k < 4; k++) words.lanes[k] = int8x4_unpack(vector[k]);
#else
  words.lanes[0] = int8x4_unpack(x[line + w / 4u * blocks_of(p.c)][w % 4u]);
#endif
  return words;
}

Element packed(ivec4 q[WORDS]) {
#if BLOCKED
  return ivec4(int8x4_pack(q[0]), int8x4_pack(q[1]), int8x4_pack(q[2]), int8x4_pack(q[3]));
#else
  return int8x4_pack(q[0]);
#endif
}

#if KIND == KIND_AVERAGE
#include "average.glslh"
#else
#include "maximum.glslh"
#endif

Span columns_under(uint w) {
  return under(w, p.stride_w, p.pad_l, p.kernel_w, p.dilation_w, p.x_w);
}

#include "small_window.glslh"
#include "large_window.glslh"

void main() {
  uint i = (workgroup_index() * LOCAL_X + gl_LocalInvocationID.x) / THREADS;
  if (THREADS > 1u) {
    large_window(i, gl_LocalInvocationID.x);
  } else if (i < p.vectors) {
    Pixels at = pixels_of(i, uvec4(p.n, p.c, p.y_h, p.y_w));
    uint plane = vector_of(Pixels(at.image, at.block, 0u, 0u), uvec4(p.n, p.c, p.x_h, p.x_w));
    Span rows = under(at.h, p.stride_h, p.pad_t, p.kernel_h, p.dilation_h, p.x_h);
    if (KERNEL > 0u) {
      y[i] = small_window(plane, at, rows);
    } else {
#if BLOCKED
      y[i] = result(plane, rows, columns_under(at.w));
#else
      ivec4 words = ivec4(0);
      // append each result by a rotation of the vector, because a dynamic index would be slow
      [[dont_unroll]] for (uint k = 0u; k < 4u; k++) {
        uint w = min(at.w + k, p.y_w - 1u);
        words = ivec4(words.yzw, result(plane, rows, columns_under(w)));
      }
      y[i] = words;
#endif
    }
  }
}
