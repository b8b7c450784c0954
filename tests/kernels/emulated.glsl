// Matrices of a subgroup where there are no matrix units: what coopmat_types.glslh declares, and the
// functions of GL_KHR_cooperative_matrix, in plain GLSL. A subgroup is SUBGROUP neighbouring invocations,
// whatever the device's own are. Element e of an accumulator (m = e / MN, n = e % MN) is that of invocation e
// % SUBGROUP, which keeps the row of W and the column of X that it needs. ELEMENTS and K_RUNS are set by
// matrix_units.py.
#include "dot_forms.glslh"

layout(constant_id = 10) const uint MM = 16;
layout(constant_id = 11) const uint MN = 16;
layout(constant_id = 12) const uint MK = 32;
layout(constant_id = 13) const uint SUBGROUP = 32;

struct MatrixW {
  uvec4 k[ELEMENTS * K_RUNS];
};
struct MatrixX {
  uvec4 k[ELEMENTS * K_RUNS];
};
struct MatrixAcc {
  int e[ELEMENTS];
};

#define subgroup_stores(n, n_end) true  // a subgroup's barrier is the workgroup's here

#define element(i) (gl_LocalInvocationIndex % SUBGROUP + (i) * SUBGROUP)
#define place_gl_CooperativeMatrixLayoutRowMajor(i) (element(i) / MN)
#define place_gl_CooperativeMatrixLayoutColumnMajor(i) (element(i) % MN)

#define coopMatLoad(matrix, array, at, stride, layout_) \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS * K_RUNS; i_++) \
    matrix.k[i_] = array[(at) + place_##layout_(i_ / K_RUNS) * (stride) + i_ % K_RUNS]

#define coopMatStore(matrix, array, at, stride, layout_)                                        \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++)                                       \
  array[(at) + place_##layout_(i_) * (stride) + element(i_) / MN / 4u][element(i_) / MN % 4u] = \
      uint(matrix.e[i_])

#if DOT == DOT_U8U8
#define element_of(word, i) int(bitfieldExtract(uint(word), int(8u * (i)), 8))
#else
#define element_of(word, i) bitfieldExtract(int(word), int(8u * (i)), 8)
#endif

// In place of functions that take and return matrices, of which drivers make copies.
#define clear(matrix) \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++) matrix.e[i_] = 0

#define add_product(matrix, w_, x_)                                      \
  [[dont_unroll]] for (uint i_ = 0u; i_ < 16u * ELEMENTS * K_RUNS; i_++) \
  matrix.e[i_ / 16u / K_RUNS] +=                                         \
      element_of(w_.k[i_ / 16u][i_ / 4u % 4u], i_ % 4u) * element_of(x_.k[i_ / 16u][i_ / 4u % 4u], i_ % 4u)

#define add_sums(matrix, x_) \
  [[dont_unroll]] for (uint i_ = 0u; i_ < 16u * ELEMENTS * K_RUNS; i_++) \
    matrix.e[i_ / 16u / K_RUNS] += element_of(x_.k[i_ / 16u][i_ / 4u % 4u], i_ % 4u)

// Sums of other workgroups: in a buffer that all see.
#define SHARED_BY_WORKGROUPS coherent
#define barrier_between_workgroups() { memoryBarrierBuffer(); barrier(); }
#define count_arrival(counter) atomicAdd(counter, 1u)
#define store_sums(matrix, array, at) \
  coopMatStore(matrix, array, at, MM / 4u, gl_CooperativeMatrixLayoutColumnMajor)
#define add_stored_sums(matrix, array, at)                                                \
  [[dont_unroll]] for (uint i_ = 0u; i_ < ELEMENTS; i_++) matrix.e[i_] += int(            \
      array[(at) + element(i_) % MN * (MM / 4u) + element(i_) / MN / 4u][element(i_) / MN % 4u])
#define add_both_sums(matrix, array, at, other) \
  add_stored_sums(matrix, array, at);           \
  add_stored_sums(matrix, array, other)
