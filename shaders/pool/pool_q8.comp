// Maximum or mean of a window sliding over int8 images.
//
//   KIND_MAX      y = max x
//   KIND_AVERAGE  y = saturate(round_half_even((sum / count) / y_scale + y_zero)), sum = sum of x_scale * (x
//                 - x_zero) in row-major order, every step a rounded float32. An integer sum and one float
//                 product decide unless the value lies farther than `safe` from an integer, so near to a tie
//                 that the order of roundings could matter: then the steps are done.
//
// Memory    x: words, y: vectors of pixels (pixels.glslh); kPackedInt8_16C is read in vectors too.
// Threads   one invocation writes one vector.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define KIND_MAX 0
#define KIND_AVERAGE 1

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

#if BLOCKED
#define Element ivec4
#define WORDS 4  // of an element
#else
#define Element int
#define WORDS 1
#endif
layout(set = 0, binding = 0) readonly buffer X { Element x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint vectors;
  uint n, c, x_h, x_w, y_h, y_w;
  uint kernel_h, kernel_w, stride_h, stride_w, pad_t, pad_l, dilation_h, dilation_w;
#if KIND == KIND_AVERAGE
  uint count;             // of every window, or 0: the elements inside the image
  int x_zero, y_zero;     // y_zero as the type of y has it; y_shift is what to subtract for the stored int8
  int y_shift, y_min, y_max;
  float x_scale, y_scale, ratio, safe;
#endif
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "pixels.glslh"
#if KIND == KIND_AVERAGE
#define RARE_QUOTIENTS
#include "exact_sum.glslh"
#endif

// of the input's rows or columns under the window, in steps of the dilation
struct Span { uint first, last; };

Span under(uint out_index, uint stride, uint pad, uint kernel, uint dilation, uint size) {
  int first = int(out_index * stride) - int(pad);
  uint skipped = first < 0 ? (uint(-first) + dilation - 1u) / dilation : 0u;
  return Span(uint(first + int(skipped * dilation)),
      uint(min(first + int((kernel - 1u) * dilation), int(size) - 1) + 1));
}

// The first vector of a line of x, of these channels.
uint line_of(Pixels at, uint h) {
  at.h = h;
  at.w = 0u;
  return vector_of(at, uvec4(p.n, p.c, p.x_h, p.x_w));
}

// The words of pixel w of a line: of 16 channels, or of four.
struct Words { ivec4 lanes[WORDS]; };

Words pixel(uint line, uint w) {
  Words words;
#if BLOCKED
  ivec4 vector = x[line + w];
  [[unroll]] for (int k = 0; k < 4; k++) words.lanes[k] = int8x4_unpack(vector[k]);
#else
  words.lanes[0] = int8x4_unpack(x[4u * (line + w / 4u * blocks_of(p.c)) + w % 4u]);
#endif
  return words;
}

#if KIND == KIND_AVERAGE
float mean_steps(float total, float count) {
  return sum(quotient(quotient(total, count), p.y_scale), float(p.y_zero));
}

// The steps one by one, of four channels: word k of the pixels.
ivec4 exact_mean(Pixels at, Span rows, Span columns, float count, int k) {
  vec4 total = vec4(0.0);
  for (uint h = rows.first; h < rows.last; h++) {
    uint line = line_of(at, h);
    for (uint w = columns.first; w < columns.last; w++) {
#if BLOCKED
      ivec4 lanes = int8x4_unpack(x[line + w][k]);
#else
      ivec4 lanes = pixel(line, w).lanes[0];
#endif
      vec4 centred = vec4(lanes - p.x_zero);
      [[unroll]] for (int i = 0; i < 4; i++) total[i] = sum(total[i], multiply(centred[i], p.x_scale));
    }
  }
  vec4 q = vec4(0.0);
  [[dont_unroll]] for (int i = 0; i < 4; i++) {  // the lanes going round: this is rare, and its code long
    q = vec4(q.yzw, clamp(roundEven(mean_steps(total.x, count)), -512.0, 512.0));
    total = total.yzwx;
  }
  return clamp(ivec4(q) - p.y_shift, ivec4(p.y_min), ivec4(p.y_max));
}

Element result(Pixels at, Span rows, Span columns) {
  ivec4 total[WORDS];
  [[unroll]] for (int k = 0; k < WORDS; k++) total[k] = ivec4(0);
  for (uint h = rows.first; h < rows.last; h++) {
    uint line = line_of(at, h);
    for (uint w = columns.first; w < columns.last; w++) {
      Words words = pixel(line, w);
      [[unroll]] for (int k = 0; k < WORDS; k++) total[k] += words.lanes[k];
    }
  }
  int inside = int((rows.last - rows.first) * (columns.last - columns.first));
  float count = float(p.count != 0u ? p.count : uint(inside));
  ivec4 q[WORDS];
  float farthest = 0.0;
  [[unroll]] for (int k = 0; k < WORDS; k++) {
    vec4 value = vec4(total[k] - p.x_zero * inside) * (p.ratio / count) + float(p.y_zero - p.y_shift);
    vec4 rounded = roundEven(value), distance = abs(value - rounded);
    q[k] = clamp(ivec4(clamp(rounded, vec4(-512.0), vec4(512.0))), ivec4(p.y_min), ivec4(p.y_max));
    farthest = max(farthest, max(max(distance.x, distance.y), max(distance.z, distance.w)));
  }
  if (farthest > p.safe) {
    [[dont_unroll]] for (int k = 0; k < WORDS; k++) {
      ivec4 exact = exact_mean(at, rows, columns, count, k);
      [[unroll]] for (int i = 0; i < WORDS; i++) q[i] = i == k ? exact : q[i];
    }
  }
#else
Element result(Pixels at, Span rows, Span columns) {
  ivec4 q[WORDS];
  [[unroll]] for (int k = 0; k < WORDS; k++) q[k] = ivec4(-128);
  for (uint h = rows.first; h < rows.last; h += p.dilation_h) {
    uint line = line_of(at, h);
    for (uint w = columns.first; w < columns.last; w += p.dilation_w) {
      Words words = pixel(line, w);
      [[unroll]] for (int k = 0; k < WORDS; k++) q[k] = max(q[k], words.lanes[k]);
    }
  }
#endif
#if BLOCKED
  return ivec4(int8x4_pack(q[0]), int8x4_pack(q[1]), int8x4_pack(q[2]), int8x4_pack(q[3]));
#else
  return int8x4_pack(q[0]);
#endif
}

Span columns_under(uint w) {
  return under(w, p.stride_w, p.pad_l, p.kernel_w, p.dilation_w, p.x_w);
}

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.vectors) {
    Pixels at = pixels_of(i, uvec4(p.n, p.c, p.y_h, p.y_w));
    Span rows = under(at.h, p.stride_h, p.pad_t, p.kernel_h, p.dilation_h, p.x_h);
#if BLOCKED
    y[i] = result(at, rows, columns_under(at.w));
#else
    ivec4 words = ivec4(0);
    [[dont_unroll]] for (uint k = 0u; k < 4u; k++) {  // the words going round
      uint w = min(at.w + k, p.y_w - 1u);
      words = ivec4(words.yzw, result(at, rows, columns_under(w)));
    }
    y[i] = words;
#endif
  }
}
