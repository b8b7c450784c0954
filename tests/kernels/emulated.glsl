// Emulated subgroup matrices for devices without matrix units. This file replaces coopmat_types.glslh and
// the functions of GL_KHR_cooperative_matrix with plain GLSL. An emulated subgroup is SUBGROUP neighbouring
// invocations, whatever the device's subgroup size. Invocation i of the subgroup holds the accumulator's
// elements e = i + j * SUBGROUP (m = e / MN, n = e % MN) and, for each of them, a row of W and a column of
// X. emulated.py defines ELEMENTS (number of values of j), K_RUNS (uvec4s in a row of W) and HALF (1 if
// elements have 16 bits).
#include "dot_forms.glslh"

layout(constant_id = 10) const uint MM = 16;
layout(constant_id = 11) const uint MN = 16;
layout(constant_id = 12) const uint MK = 32;
layout(constant_id = 13) const uint SUBGROUP = 32;
#ifdef SIGNS
layout(constant_id = 16) const bool SIGNED = false;
#else
const bool SIGNED = false;
#endif

#if FLOAT16_IMAGES  // replaces float_numbers.glslh, which needs 16-bit storage
#define FLOAT_NUMBERS_GLSLH
#define Number uint
#define Stored uint
#define StoredFour uvec2
#define shift_of(at) (16u * ((at) % 2u))
#define stored_at(array, at) (array[(at) / 2u] >> shift_of(at) & 0xffffu)
#define store_number(array, at, value)                        \
  {                                                           \
    atomicAnd(array[(at) / 2u], ~(0xffffu << shift_of(at)));  \
    atomicOr(array[(at) / 2u], float16_bits(value) << shift_of(at)); \
  }
#endif

struct MatrixW {
  uvec4 k[ELEMENTS * K_RUNS];
};
struct MatrixX {
  uvec4 k[ELEMENTS * K_RUNS];
};
#if HALF
#define SUM float
#define stored_bits(sum) floatBitsToUint(sum)
#define sum_of(bits) uintBitsToFloat(bits)
#define PER_WORD 2u
#ifdef BRAIN
#define element_of(word, i) uintBitsToFloat((i) == 0u ? (word) << 16 : (word) & 0xffff0000u)
#else
#define element_of(word, i) unpackHalf2x16(word)[i]
#endif
uint subtract_halves(uint a, uint b) { return packHalf2x16(unpackHalf2x16(a) - unpackHalf2x16(b)); }
#else
#define SUM int
#define stored_bits(sum) uint(sum)
#define sum_of(bits) int(bits)
#define PER_WORD 4u
#if DOT == DOT_U8U8
#define element_of(word, i) int(bitfieldExtract(uint(word), int(8u * (i)), 8))
#else
#define element_of(word, i) bitfieldExtract(int(word), int(8u * (i)), 8)
#endif
#endif
struct MatrixAcc {
  SUM e[ELEMENTS];
};

#define subgroup_stores(n, n_end) true  // all subgroups enter, because subgroupBarrier() is barrier() here

#define element(i) (gl_LocalInvocationIndex % SUBGROUP + (i) * SUBGROUP)
#define place_gl_CooperativeMatrixLayoutRowMajor(i) (element(i) / MN)
#define place_gl_CooperativeMatrixLayoutColumnMajor(i) (element(i) % MN)
#define across_gl_CooperativeMatrixLayoutRowMajor(i) (element(i) % MN)
#define across_gl_CooperativeMatrixLayoutColumnMajor(i) (element(i) / MN)

#define coopMatLoad(matrix, array, at, stride, layout_) \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS * K_RUNS; i_++) \
    matrix.k[i_] = array[(at) + place_##layout_(i_ / K_RUNS) * (stride) + i_ % K_RUNS]

// Load a transposed matrix of 16-bit elements: in memory, line k holds element k of every row.
#define load_matrix_of_lines(matrix, at, stride)                                                      \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS * TERMS; i_++) {                                   \
    uint row_ = element(i_ / TERMS) % MN;                                                              \
    uint word_ = tile[(at) + i_ % TERMS * (stride) + row_ / 8u][row_ % 8u / 2u] >> 16u * (row_ % 2u);  \
    if (i_ % 2u == 0u) word_of(matrix, i_) = word_ & 0xffffu;                                          \
    else word_of(matrix, i_) |= word_ << 16u;                                                          \
  }

#define coopMatStore(matrix, array, at, stride, layout_)                                        \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++)                                       \
  array[(at) + place_##layout_(i_) * (stride) + across_##layout_(i_) / 4u][across_##layout_(i_) % 4u] = \
      stored_bits(matrix.e[i_])

#define scale_sums(matrix, scales, biases)                                          \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++) {                         \
    matrix.e[i_] = matrix.e[i_] * scales.e[i_] + biases.e[i_];                      \
    if (CLAMPED) matrix.e[i_] = clamp(matrix.e[i_], p.y_low, p.y_high);             \
  }
#define store_halves(matrix, at, stride)                                           \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++) {                        \
    uint line_ = (at) + element(i_) / MN * (stride), half_ = element(i_) % MN;     \
    uint shift_ = 16u * (half_ % 2u);                                              \
    atomicAnd(tile[line_ + half_ / 8u][half_ / 2u % 4u], ~(0xffffu << shift_));    \
    atomicOr(tile[line_ + half_ / 8u][half_ / 2u % 4u], float16_bits(matrix.e[i_]) << shift_); \
  }

// These are macros, not functions, because drivers would copy the matrices that a function takes and
// returns.
#define clear(matrix) \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++) matrix.e[i_] = SUM(0)

#define word_of(matrix, i) matrix.k[(i) / PER_WORD / 4u][(i) / PER_WORD % 4u]
#define TERMS (4u * PER_WORD * K_RUNS)
#define add_product(matrix, w_, x_)                                  \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS * TERMS; i_++)    \
  matrix.e[i_ / TERMS] += element_of(word_of(w_, i_), i_ % PER_WORD) * \
      element_of(word_of(x_, i_), i_ % PER_WORD)

#define add_sums(matrix, x_)                                       \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS * TERMS; i_++)  \
    matrix.e[i_ / TERMS] += element_of(word_of(x_, i_), i_ % PER_WORD)

#define lower_halves(a, b) ((a) & 0xffffu | (b) << 16)
#define upper_halves(a, b) ((a) >> 16 | (b) & 0xffff0000u)

#define brains_of(two) upper_halves(floatBitsToUint((two).x), floatBitsToUint((two).y))

// Split a matrix whose 16-bit elements are two bytes each into two float16 matrices, one for each byte.
#define pair_word(word, nth, biased)                                                    \
  (SIGNED ? ((nth) == 0u ? (word) : (word) >> 8 | (word) << 24) & 0x807f807fu            \
          : (word) >> 8u * (nth) & 0x00ff00ffu | (biased))
#define less_zeros(word, zeros) (SIGNED ? (word) : subtract_halves(word, zeros))
#define halves_of_pairs(pairs, zeros, low, high)                                 \
  [[dont_unroll]] for (uint i_ = 0u; i_ < 4u * ELEMENTS * K_RUNS; i_++) {        \
    uint r_ = i_ / 4u, c_ = i_ % 4u;                                             \
    uint word_ = pairs.k[r_][c_], zero_ = zeros.k[r_][c_];                       \
    low.k[r_][c_] = less_zeros(pair_word(word_, 0u, 0x64006400u), zero_);        \
    high.k[r_][c_] = less_zeros(pair_word(word_, 1u, 0x64006400u), zero_);       \
  }

// WORDS_W (for x: WORDS_X) is the number of words of a matrix in one invocation; a word holds two
// elements. MOST_WORDS_* is an upper bound. word_of_matrix and set_word read and write word q.
#define WORDS_W (4u * ELEMENTS * K_RUNS)
#define WORDS_X WORDS_W
#define MOST_WORDS_W WORDS_W
#define MOST_WORDS_X WORDS_W
#define word_of_matrix(m, q) m.k[(q) / 4u][(q) % 4u]
#define set_word(m, q, word) m.k[(q) / 4u][(q) % 4u] = word
#define first_of(q) ((q) - (q) / 4u % 2u * 4u)  // words q and q + 4 of a row are a pair
#define further(q) ((q) / 4u % 2u)
#define LOADS_X (WORDS_X / 2u)
#define MOST_LOADS_X LOADS_X
#define word_of_run(l) ((l) / 4u * 8u + (l) % 4u)
#define further_word(l) (word_of_run(l) + 4u)
// The first 8 of 16 neighbouring invocations store *word*, the other 8 *further*.
#define WORDS_BOTH WORDS_X
#define set_both(m, q, word, further) set_word(m, q, gl_LocalInvocationIndex % 16u < 8u ? (word) : (further))
#define f16vec2 vec2
#define unpackFloat2x16 unpackHalf2x16
#define subtract_matrix(m, zeros)                                              \
  [[dont_unroll]] for (uint i_ = 0u; i_ < 4u * ELEMENTS * K_RUNS; i_++)        \
    m.k[i_ / 4u][i_ % 4u] = less_zeros(m.k[i_ / 4u][i_ % 4u], zeros.k[i_ / 4u][i_ % 4u])

// Convert the nth code of each 16-bit element (which holds four codes of 4 bits, or two of 8 bits) to
// float16. Subtract the zero points, unless codes are signed.
#define halves_of_codes(codes, nth, biased, zeros, halves)                                       \
  [[dont_unroll]] for (uint i_ = 0u; i_ < 4u * ELEMENTS * K_RUNS; i_++) {                        \
    uint r_ = i_ / 4u, c_ = i_ % 4u, word_ = codes.k[r_][c_];                                    \
    if (BITS == 4) word_ = word_ >> BITS * (nth) & 0x000f000fu | (biased);                       \
    else word_ = pair_word(word_, nth, biased);                                                  \
    halves.k[r_][c_] = less_zeros(word_, zeros.k[r_][c_]);                                       \
  }
// The sum with 0 hides a constant value from the compiler: Mesa 22.3 reads the upper half of a constant as
// 0.
#define fill_halves(matrix, value)                                        \
  [[dont_unroll]] for (uint i_ = 0u; i_ < 4u * ELEMENTS * K_RUNS; i_++)   \
    matrix.k[i_ / 4u][i_ % 4u] = packHalf2x16(vec2((value) + float(p.first_group >> 31)))
#define load_scales(matrix, at)                                                     \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++) matrix.e[i_] =            \
      sum_of(tile[((at) + element(i_) / MN) / 4u][element(i_) / MN % 4u])
#define load_points(matrix, at)                                                                  \
  [[dont_unroll]] for (uint i_ = 0u; i_ < 4u * ELEMENTS * K_RUNS; i_++) {                        \
    uint half_ = (at) + element(i_ / (4u * K_RUNS)) / MN;                                        \
    uint one_ = tile[half_ / 8u][half_ / 2u % 4u] >> 16u * (half_ % 2u) & 0xffffu;               \
    matrix.k[i_ / 4u][i_ % 4u] = one_ | one_ << 16u;                                             \
  }
#define multiply_sums(total, factors) \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++) total.e[i_] *= factors.e[i_]
#define add_scaled(total, scales, sums) \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++) total.e[i_] += scales.e[i_] * sums.e[i_]

// Workgroups read each other's sums from a buffer.
#define SHARED_BY_WORKGROUPS coherent
#define barrier_between_workgroups() { memoryBarrierBuffer(); barrier(); }
#define count_arrival(counter) atomicAdd(counter, 1u)
#define store_sums(matrix, array, at) \
  coopMatStore(matrix, array, at, MM / 4u, gl_CooperativeMatrixLayoutColumnMajor)
#define add_stored_sums(matrix, array, at)                                                \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++) matrix.e[i_] += sum_of(         \
      array[(at) + element(i_) % MN * (MM / 4u) + element(i_) / MN / 4u][element(i_) / MN % 4u])
#define add_both_sums(matrix, array, at, other) \
  add_stored_sums(matrix, array, at);           \
  add_stored_sums(matrix, array, other)
