// Softmax of long int8 rows to int8, with the bits of softmax_q8.comp. Each vector holds four numbers of each
// of four neighbouring rows: kPackedInt8_4H4W along w, kPackedInt8_4W4C along c.
//
// Memory    x, y: int8 in one of these two layouts, as vectors of four words, one word for each row; table:
//           256 int32 numbers.
// Threads   THREADS invocations compute four rows together; a workgroup computes LOCAL_X / THREADS groups of
//           four rows. Each invocation reads up to KEPT vectors, THREADS apart, and keeps them in registers.
//           Maximum and sum are reduced in shared memory; each iteration halves the number of active
//           invocations. A row has more elements than there are different results (256), so all results are
//           computed once and looked up. They are stored as bytes, so that lookups rarely conflict in a bank.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const uint THREADS = 32;
layout(constant_id = 2) const uint KEPT = 8;

layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) readonly buffer Table { int table[]; };
layout(set = 0, binding = 2) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint fours, size;       // number of groups of four rows; elements of a row
  float scale;            // this and all later constants: the quantization of y
  int zero_point;
  float inverse, low, high, safe;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "quantized.glslh"
#include "softmax.glslh"

const uint SHARERS = LOCAL_X / THREADS;
shared uvec4 scratch[2 * LOCAL_X];      // maxima of four rows; later sums of two rows (low, high word)
shared float inverses[4 * SHARERS];     // 1 / sum of each row
shared int entries[256];                // copy of the table
shared uint results[4 * SHARERS * 64];  // all results of each row, as bytes indexed by max(x) - x

int kept[4 * KEPT];  // words of x, later max(x) - x
uint me, mine, t;    // me: index in the workgroup; mine: group of four rows; t: index in this group

// Return how many numbers of a row are in vector k of an invocation; only a row's last vector has fewer
// than four.
uint count_of(uint k) { return k + 1u < KEPT ? 4u : min(p.size - min(4u * (t + k * THREADS), p.size), 4u); }

void load_rows(uint four) {
  uint vectors = ceil_div(p.size, 4u);
  [[unroll]] for (uint k = 0u; k < KEPT; k++) {
    ivec4 vector = x[four * vectors + min(t + k * THREADS, vectors - 1u)];
    [[unroll]] for (uint r = 0u; r < 4u; r++) kept[4u * k + r] = vector[r];
  }
}

ivec4 tops() {
  ivec4 top;
  [[unroll]] for (uint r = 0u; r < 4u; r++) {
    ivec4 highest = ivec4(int(0x80000000u));  // the highest byte is a maximum; lower bytes are ignored
    [[unroll]] for (uint k = 0u; k < KEPT; k++) {
      uint count = count_of(k);
      int word = kept[4u * k + r], mask = count < 4u ? (1 << (8u * count)) - 1 : -1;
      word = (word & mask) | (int(0x80808080u) & ~mask);  // -128 beyond the row's end
      highest = max(highest, ivec4(word << 24, word << 16, word << 8, word));
    }
    top[r] = max(max(highest.x, highest.y), max(highest.z, highest.w)) >> 24;
  }
  scratch[me] = uvec4(top);
  barrier();
  for (uint half_ = THREADS / 2u; half_ > 0u; half_ /= 2u) {
    if (t < half_) scratch[me] = uvec4(max(ivec4(scratch[me]), ivec4(scratch[me + half_])));
    barrier();
  }
  top = ivec4(scratch[me - t]);
  barrier();
  return top;
}

uvec4 add_both(uvec4 a, uvec4 b) { return uvec4(add_wide(a.xy, b.xy), add_wide(a.zw, b.zw)); }

void add_up(ivec4 top) {
  uvec2 sums[4];
  [[unroll]] for (uint r = 0u; r < 4u; r++) {
    uvec2 total = uvec2(0u);
    [[unroll]] for (uint k = 0u; k < KEPT; k++) {
      uint d = distances(kept[4u * k + r], top[r]), count = count_of(k);
      kept[4u * k + r] = int(d);
      // Mask each entry separately: this takes 33 us for 25,690 rows on an H200, while a mask of the whole
      // vector takes 43 us.
      uvec4 found = uvec4(entries[d & 255u], entries[d >> 8 & 255u],
          entries[d >> 16 & 255u], entries[d >> 24]);
      [[unroll]] for (uint j = 0u; j < 4u; j++) if (j >= count) found[j] = 0u;
      // three entries add up to at most 3 * 2^30
      total = add_wide(total, uvec2(found.x + found.y + found.z, 0u));
      total = add_wide(total, uvec2(found.w, 0u));
    }
    sums[r] = total;
  }
  scratch[me] = uvec4(sums[0], sums[1]);
  scratch[LOCAL_X + me] = uvec4(sums[2], sums[3]);
  barrier();
  for (uint half_ = THREADS / 2u; half_ > 0u; half_ /= 2u) {
    if (t < half_) {
      scratch[me] = add_both(scratch[me], scratch[me + half_]);
      scratch[LOCAL_X + me] = add_both(scratch[LOCAL_X + me], scratch[LOCAL_X + me + half_]);
    }
    barrier();
  }
  if (t < 4u) {
    uvec4 both = scratch[t / 2u * LOCAL_X + me - t];
    inverses[mine * 4u + t] = quotient(1.0, wide_to_float(t % 2u == 0u ? both.xy : both.zw));
  }
  barrier();
}

void make_results() {
  uint row = mine * 4u + t % 4u;
  float inverse = inverses[row];
  // Neighbouring invocations compute results of neighbouring rows. Only the first results of a row, which may
  // differ from 0, take long; this order distributes them over all invocations.
  [[dont_unroll]] for (uint d = t / 4u * 4u; d < 256u; d += THREADS) {
    ivec4 four = ivec4(entries[d], entries[d + 1u], entries[d + 2u], entries[d + 3u]);
    results[row * 64u + d / 4u] = uint(results_of(four, inverse));
  }
  barrier();
}

int result(uint row, uint d) { return int(results[row * 64u + (d >> 2)] >> (8u * (d & 3u))); }

void store_rows(uint four) {
  uint vectors = ceil_div(p.size, 4u);
  [[unroll]] for (uint k = 0u; k < KEPT; k++) {
    ivec4 vector;
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
      uint d = uint(kept[4u * k + r]), row = mine * 4u + r;
      vector[r] = int8x4_pack(ivec4(result(row, d & 255u), result(row, d >> 8 & 255u),
          result(row, d >> 16 & 255u), result(row, d >> 24)));
    }
    if (four < p.fours && t + k * THREADS < vectors) y[four * vectors + t + k * THREADS] = vector;
  }
}

void main() {
  me = gl_LocalInvocationID.x;
  t = me % THREADS;
  mine = me / THREADS;
  uint four = workgroup_index() * SHARERS + mine;
  load_rows(min(four, p.fours - 1u));
  for (uint i = me; i < 256u; i += LOCAL_X) entries[i] = table[i];
  add_up(tops());
  make_results();
  store_rows(four);
}
