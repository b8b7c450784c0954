// Maximum or mean of a window sliding over int8 images.
//
//   KIND_MAX      y = max x
//   KIND_AVERAGE  y = saturate(round_half_even((sum / count) / y_scale + y_zero)), sum = sum of x_scale * (x
//                 - x_zero) in row-major order, every step a rounded float32. An integer sum and one float
//                 product decide unless the value lies farther than `safe` from an integer, so near to a tie
//                 that the order of roundings could matter: then the steps are done.
//
// Memory    x, y: vectors of pixels (pixels.glslh).
// Threads   one invocation writes one vector.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define KIND_MAX 0
#define KIND_AVERAGE 1

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
// of both axes, where the kernel is at most 3x3, its stride at most 2 and its dilation 1; or 0: as p says
layout(constant_id = 1) const uint KERNEL = 0;
layout(constant_id = 2) const uint STRIDE = 1;
layout(constant_id = 3) const uint ASIDE = 0;  // where a vector's first column lies in one of x (4W4C)

#if BLOCKED
#define Element ivec4  // of a result
#define WORDS 4        // of an element
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
  uint count;             // of every window, or 0: the elements inside the image
  int x_zero, y_zero;     // y_zero as the type of y has it; y_shift is what to subtract for the stored int8
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
#define RARE_QUOTIENTS
#include "exact_sum.glslh"
#endif

// of the input's rows or columns under the window, in steps of the dilation
struct Span { uint first, last; };

Span under(uint out_index, uint stride, uint pad, uint kernel, uint dilation, uint size) {
  int first = int(out_index * stride) - int(pad);
  if (KERNEL > 0u) dilation = 1u;
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

// The means of the sums of so many elements inside the image.
Element means(Pixels at, Span rows, Span columns, ivec4 total[WORDS]) {
  int inside = int((rows.last - rows.first) * (columns.last - columns.first));
  float count = float(p.count != 0u ? p.count : uint(inside));
  ivec4 q[WORDS];
  float farthest = 0.0;
  [[unroll]] for (int k = 0; k < WORDS; k++) {
    vec4 exact = vec4(total[k] - p.x_zero * inside) * (p.ratio / count) + float(p.y_zero - p.y_shift);
    vec4 value = clamp(exact, vec4(p.y_min), vec4(p.y_max));
    precise vec4 shifted = value + 12582912.0;  // 1.5 * 2^23: a float's last bit counts ones there
    precise vec4 rounded = shifted - 12582912.0;
    vec4 distance = abs(value - rounded);
    q[k] = floatBitsToInt(shifted);
    farthest = max(farthest, max(max(distance.x, distance.y), max(distance.z, distance.w)));
  }
  if (farthest > p.safe) {
    [[dont_unroll]] for (int k = 0; k < WORDS; k++) {
      ivec4 exact = exact_mean(at, rows, columns, count, k);
      [[unroll]] for (int i = 0; i < WORDS; i++) q[i] = i == k ? exact : q[i];
    }
  }
  return packed(q);
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
  return means(at, rows, columns, total);
}

// What small windows add up or compare: four numbers from 0 to 255 in two words.
#define Taps ivec2
Taps no_taps() { return Taps(0); }
Taps joined(Taps a, Taps b) { return a + b; }
Taps taps_of(int word, int inside) {
  int u = (word ^ int(0x80808080u)) & inside;
  return Taps(u & 0x00ff00ff, (u >> 8) & 0x00ff00ff);
}

Element result_of(Pixels at, Span rows, Span columns, Taps taps[WORDS]) {
  int inside = int((rows.last - rows.first) * (columns.last - columns.first));
  ivec4 total[WORDS];
  [[unroll]] for (int k = 0; k < WORDS; k++) {
    uvec2 sums = uvec2(taps[k]);
    total[k] = ivec4(sums.x & 0xffffu, sums.y & 0xffffu, sums.x >> 16, sums.y >> 16) - 128 * inside;
  }
  return means(at, rows, columns, total);
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
  return packed(q);
}

// Four numbers in the highest bytes: what is below them decides nothing.
#define Taps ivec4
Taps no_taps() { return Taps(int(0x80000000u)); }
Taps joined(Taps a, Taps b) { return max(a, b); }
Taps taps_of(int word, int inside) {
  int v = (word & inside) | (int(0x80808080u) & ~inside);
  return Taps(v << 24, v << 16, v << 8, v);
}

Element result_of(Pixels at, Span rows, Span columns, Taps taps[WORDS]) {
  ivec4 q[WORDS];
  [[unroll]] for (int k = 0; k < WORDS; k++) q[k] = taps[k] >> 24;
  return packed(q);
}
#endif

Span columns_under(uint w) {
  return under(w, p.stride_w, p.pad_l, p.kernel_w, p.dilation_w, p.x_w);
}

struct Line { uint first; int inside; };  // of x; inside: all bits or none

Line line_under(Pixels at, uint kh) {
  uint h = at.h * STRIDE + kh - p.pad_t;
  return Line(line_of(at, min(h, p.x_h - 1u)), -int(h < p.x_h));
}

#if BLOCKED
ivec4 small_window(Pixels at, Span rows) {
  Taps taps[WORDS];
  [[unroll]] for (int k = 0; k < WORDS; k++) taps[k] = no_taps();
  [[unroll]] for (uint kh = 0u; kh < KERNEL; kh++) {
    Line line = line_under(at, kh);
    [[unroll]] for (uint kw = 0u; kw < KERNEL; kw++) {
      uint w = at.w * STRIDE + kw - p.pad_l;
      ivec4 vector = x[line.first + min(w, p.x_w - 1u)];
      int inside = line.inside & -int(w < p.x_w);
      [[unroll]] for (int k = 0; k < WORDS; k++) taps[k] = joined(taps[k], taps_of(vector[k], inside));
    }
  }
  return result_of(at, rows, columns_under(at.w), taps);
}
#else
#define MOST_COLUMNS 9u  // 3 * STRIDE + KERNEL
#define MOST_VECTORS 3u

// Four pixels: lines are joined first, then the columns that each sees.
ivec4 small_window(Pixels at, Span rows) {
  Taps under[MOST_COLUMNS];
  [[unroll]] for (uint j = 0u; j < MOST_COLUMNS; j++) under[j] = no_taps();
  uint first = at.w * STRIDE - p.pad_l;
  [[unroll]] for (uint kh = 0u; kh < KERNEL; kh++) {
    Line line = line_under(at, kh);
    int words[4u * MOST_VECTORS];
    [[unroll]] for (uint v = 0u; v < MOST_VECTORS; v++) {
      uint vector = min(uint(int(first - ASIDE) >> 2) + v, (p.x_w - 1u) / 4u);
      ivec4 loaded = x[line.first + vector * blocks_of(p.c)];
      [[unroll]] for (uint k = 0u; k < 4u; k++) words[4u * v + k] = loaded[k];
    }
    [[unroll]] for (uint j = 0u; j < MOST_COLUMNS; j++) {
      int inside = line.inside & -int(first + j < p.x_w), word = words[j];
      if (ASIDE == 1u) word = words[j + 1u];
      if (ASIDE == 2u) word = words[j + 2u];
      if (ASIDE == 3u) word = words[j + 3u];
      under[j] = joined(under[j], taps_of(word, inside));
    }
  }
  ivec4 words;
  [[unroll]] for (uint k = 0u; k < 4u; k++) {
    Taps taps[WORDS];
    taps[0] = no_taps();
    [[unroll]] for (uint kw = 0u; kw < KERNEL; kw++)
      taps[0] = joined(taps[0], STRIDE == 1u ? under[k + kw] : under[min(2u * k + kw, MOST_COLUMNS - 1u)]);
    words[k] = result_of(at, rows, columns_under(min(at.w + k, p.y_w - 1u)), taps);
  }
  return words;
}
#endif

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.vectors) {
    Pixels at = pixels_of(i, uvec4(p.n, p.c, p.y_h, p.y_w));
    Span rows = under(at.h, p.stride_h, p.pad_t, p.kernel_h, p.dilation_h, p.x_h);
    if (KERNEL > 0u) {
      y[i] = small_window(at, rows);
    } else {
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
}
