// Softmax of int8 rows: y = e / sum(e), e = table[max(x) - x]. Entry d of the table is exp(-d * x_scale) *
// 2^30 as an integer, so the sum is exact and every device returns the same bits. The quotient is float32(e)
// * (1 / float32(sum)), each operation rounded to nearest even.
//   OUT_F32   y, row-major
//   OUT_Q8    saturate(round_half_even(y / y_scale) + y_zero), in the layout of x
//
// Memory    x: Int8x4 words in layout number LAYOUT, whose lanes lie along AXIS (1 is c, 3 is w); table: 256
//           int32 numbers; y: float32 (OUT_F32) or int8 (OUT_Q8).
// Threads   THREADS invocations compute a row together; a workgroup computes LOCAL_X / THREADS neighbouring
//           rows, because kPackedInt8_4H4W stores four rows together. Maximum and sum are reduced in shared
//           memory; each iteration halves the number of active invocations. BY_TABLE: a long row has more
//           elements than there are different results (256), so all results are computed once and looked up.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OUT_F32 0
#define OUT_Q8 1

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
layout(constant_id = 2) const uint THREADS = 64;
layout(constant_id = 3) const uint AXIS = 3;
layout(constant_id = 4) const bool BY_TABLE = false;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer Table { int table[]; };
#if OUT == OUT_F32
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
#else
layout(set = 0, binding = 2) writeonly buffer Y { int y[]; };
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint rows, n, c, h, w;
  float scale;            // this and all later constants: only for OUT_Q8
  int zero_point;
  float inverse, low, high, safe;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#if OUT == OUT_Q8
#include "quantized.glslh"
#endif
#include "softmax.glslh"
#include "softmax_words.glslh"

const uint ROWS = LOCAL_X / THREADS;  // number of rows that a workgroup computes
shared int most[LOCAL_X];
shared uvec2 sums[LOCAL_X];  // partial sums, low and high word
shared int entries[256];     // copy of the table
#if OUT == OUT_Q8
shared int results[BY_TABLE ? 256 * ROWS : 1];  // all results of each row, indexed by max(x) - x
#endif

// Return the word with its lanes `count` to 3 set to -128.
Int8x4 cut(Int8x4 word, uint count) {
  int mask = count < 4u ? (1 << (8u * count)) - 1 : -1;
  return (word & mask) | (int(0x80808080u) & ~mask);
}

ivec4 entries_of(uint d) {
  return ivec4(entries[d & 255u], entries[d >> 8 & 255u], entries[d >> 16 & 255u], entries[d >> 24]);
}

void main() {
  uint me = gl_LocalInvocationID.x, t = me / ROWS, mine = me % ROWS;
  uint row = workgroup_index() * ROWS + mine, size = length_();
  uvec4 e = begin_of(min(row, p.rows - 1u));
  Words words = words_of(e);
  for (uint i = me; i < 256u; i += LOCAL_X) entries[i] = table[i];
  ivec4 highest = ivec4(int(0x80000000u));  // the highest byte is a maximum; lower bytes are ignored
  for (uint i = 4u * t; i < size; i += 4u * THREADS) {
    Int8x4 word = cut(x[word_at(words, i)], size - i);
    highest = max(highest, ivec4(word << 24, word << 16, word << 8, word));
  }
  most[me] = max(max(highest.x, highest.y), max(highest.z, highest.w)) >> 24;
  barrier();
  for (uint half_ = THREADS / 2u; half_ > 0u; half_ /= 2u) {
    if (t < half_) most[me] = max(most[me], most[me + half_ * ROWS]);
    barrier();
  }
  int top = most[mine];

  uvec2 total = uvec2(0u);
  for (uint i = 4u * t; i < size; i += 4u * THREADS) {
    uvec4 found = uvec4(entries_of(distances(x[word_at(words, i)], top)));
    if (size - i < 4u) {
      [[unroll]] for (uint k = 1u; k < 4u; k++) if (i + k >= size) found[k] = 0u;
    }
    total = add_wide(total, uvec2(found.x + found.y, 0u));  // two entries add up to at most 2^31
    total = add_wide(total, uvec2(found.z + found.w, 0u));
  }
  sums[me] = total;
  barrier();
  for (uint half_ = THREADS / 2u; half_ > 0u; half_ /= 2u) {
    if (t < half_) sums[me] = add_wide(sums[me], sums[me + half_ * ROWS]);
    barrier();
  }
  if (t == 0u) sums[me].x = floatBitsToUint(quotient(1.0, wide_to_float(sums[me])));
  barrier();
  float inverse = uintBitsToFloat(sums[mine].x);
#if OUT == OUT_Q8
  if (BY_TABLE) {
    for (uint d = 4u * t; d < 256u; d += 4u * THREADS) {
      ivec4 four = ivec4(entries[d], entries[d + 1u], entries[d + 2u], entries[d + 3u]);
      Int8x4 word = results_of(four, inverse);
      [[unroll]] for (uint k = 0u; k < 4u; k++) results[mine * 256u + d + k] = word >> (8u * k);
    }
    barrier();
  }
#endif
  if (row < p.rows) {
    for (uint i = 4u * t; i < size; i += 4u * THREADS) {
      uint d = distances(x[word_at(words, i)], top);
#if OUT == OUT_F32
      vec4 result = quotients(entries_of(d), inverse);
      [[unroll]] for (uint k = 0u; k < 4u; k++)
        if (i + k < size) y[row_major(along(e, i + k), extent())] = result[k];
#else
      Int8x4 word;
      if (BY_TABLE) {
        uvec4 at = mine * 256u + (uvec4(d, d >> 8, d >> 16, d >> 24) & 255u);
        word = int8x4_pack(ivec4(results[at.x], results[at.y], results[at.z], results[at.w]));
      } else {
        word = quantized_four(quotients(entries_of(d), inverse));
      }
      y[word_at(words, i)] = word;
#endif
    }
  }
}
