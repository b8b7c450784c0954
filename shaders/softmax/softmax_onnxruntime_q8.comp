// Softmax of int8 rows with the bits of ONNX Runtime's QLinearSoftmax: e = table[255 - max(x) + x] as floats,
// sum = their sum from the first to the last, y = saturate(round_half_even((e * steps) / sum) + y_zero), each
// operation rounded to nearest even. The order of additions decides the bits of the sum, so one invocation
// adds the numbers of a row.
//
//   NORMAL     no number of the table is subnormal, so the device's own additions round correctly
//   LITERT     the formula of LiteRT: y = round_half_even(e * (1 / (sum * y_scale))) + y_zero, with the same
//              sum; the push constant steps is y_scale
//
// Memory    x, y: Int8x4 words in layout number LAYOUT, whose lanes lie along AXIS (1 is c, 3 is w); table:
//           the bits of 256 float32, none negative.
// Threads   THREADS invocations (a power of two) compute a row together; the first invocation adds the
//           numbers. If THREADS is at least 4, all invocations look numbers up and pass them to the first
//           one through shared memory.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
layout(constant_id = 2) const uint THREADS = 1;
layout(constant_id = 3) const uint AXIS = 3;
layout(constant_id = 4) const bool LITERT = false;
layout(constant_id = 5) const bool NORMAL = false;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer Table { uint table[]; };
layout(set = 0, binding = 2) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint rows, n, c, h, w;
  float steps;            // floor(1 / y_scale); LITERT: y_scale
  int y_zero;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "softmax_sum.glslh"
#include "softmax_words.glslh"

const bool TOGETHER = THREADS >= 4u;
shared int tops[LOCAL_X];
shared uint totals[LOCAL_X];
shared uvec4 found[TOGETHER ? LOCAL_X : 1u];

int top_of(Words row, uint t, uint size) {
  int top = -128;
  for (uint i = 4u * t; i < size; i += 4u * THREADS) {
    ivec4 q = int8x4_unpack(x[word_at(row, i)]);
    [[unroll]] for (uint lane = 0u; lane < 4u; lane++) if (i + lane < size) top = max(top, q[lane]);
  }
  return top;
}

// Return the table entries of four numbers of a row. Beyond the row's end they are 0, which leaves the sum
// unchanged.
uvec4 entries(Words row, uint i, uint size, int top) {
  ivec4 q = int8x4_unpack(x[word_at(row, min(i, size - 1u))]);
  uvec4 e = uvec4(0u);
  [[unroll]] for (uint lane = 0u; lane < 4u; lane++)
    if (i + lane < size) e[lane] = table[255 - top + q[lane]];
  return e;
}

// Return the row's sum to the row's first invocation. Every invocation of the workgroup must call this.
uint total_of(Words row, uint t, uint size, int top) {
  uint me = gl_LocalInvocationID.x, part = TOGETHER ? 4u * THREADS : size, total = 0u;
  for (uint begin = 0u; begin < size; begin += part) {
    if (TOGETHER) {
      found[me] = entries(row, begin + 4u * t, size, top);
      barrier();
    }
    uint end = t == 0u ? min(begin + part, size) : begin;
    for (uint i = begin; i < end; i += 8u) {  // a larger step makes SwiftShader's optimizer hang
      uvec4 e[2];
      [[unroll]] for (uint four = 0u; four < 2u; four++) {  // the bound is constant, so that drivers unroll
        uint k = i + 4u * four;
        e[four] = TOGETHER ? found[me + (k - begin) / 4u] : entries(row, k, size, top);
      }
      [[unroll]] for (uint four = 0u; four < 2u; four++)
        [[unroll]] for (uint lane = 0u; lane < 4u; lane++) total = added(total, e[four][lane]);
    }
    if (TOGETHER) barrier();
  }
  return total;
}

void store_results(Words row, uint t, uint size, int top, uint total) {
  uint divisor = divisor_of(total);
  float factor = factor_of(total);
  for (uint i = 4u * t; i < size; i += 4u * THREADS) {
    uint word = word_at(row, i);
    ivec4 result = clamp(results_of(entries(row, i, size, top), divisor, factor) + p.y_zero, -128, 127);
    [[unroll]] for (uint lane = 0u; lane < 4u; lane++) if (i + lane >= size) result[lane] = 0;
    y[word] = int8x4_pack(result);
  }
}

void main() {
  uint me = gl_LocalInvocationID.x, t = me % THREADS, row = (workgroup_index() * LOCAL_X + me) / THREADS;
  uint size = length_();
  Words words = words_of(begin_of(min(row, p.rows - 1u)));
  tops[me] = top_of(words, t, size);
  for (uint half_ = THREADS / 2u; half_ > 0u; half_ /= 2u) {
    barrier();
    if (t < half_) tops[me] = max(tops[me], tops[me + half_]);
  }
  barrier();
  int top = tops[me - t];
  uint total = total_of(words, t, size, top);
  if (t == 0u) totals[me] = total;
  barrier();
  if (row < p.rows) store_results(words, t, size, top, totals[me - t]);
}
