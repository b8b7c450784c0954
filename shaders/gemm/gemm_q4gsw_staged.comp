// Y[M,N] = X[M,K] W[N,K]^T + bias[N] through shared memory: float activations, weights of 4 or 8 bits in
// groups along K, dequantized once for each tile, float32 accumulation.
//
// Memory    x: float32 rows of whole vec4; w: rows of codes in MatMulNBits's order; w_groups:
//           common/grouped_weight.glslh; y: float32 rows. Shared memory holds one step of STEP k for each
//           slice, four k in a vec4, while the next step is in registers.
// Threads   a workgroup is LX x LY invocations x SLICES slices of k, and computes LY * TILE_M rows x
//           LX * TILE_N columns; an invocation computes TILE_M x TILE_N results, LY (LX) apart. The slices'
//           sums are added in order at the end.
// Needs     128 bytes of shared memory for each row and column of the tile and slice.
//
// The results of a workgroup, for TILE_M = TILE_N = 2. Invocation (i, j) has the result at row i, column j
// of each block:
//
//                      LX columns      LX columns
//                    +---------------+---------------+
//           LY rows  | (i, j)        | (i, j)        |    in shared memory: for each slice, a step of STEP k
//                    +---------------+---------------+    of the rows of x and of the columns of w
//           LY rows  | (i, j)        | (i, j)        |    in registers: the sums, and the next step
//                    +---------------+---------------+
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require

layout(local_size_x = LX, local_size_y = LY, local_size_z = SLICES) in;
layout(constant_id = 3) const bool HALF_SCALES = false;
layout(constant_id = 4) const uint GROUPS = 1;  // groups in a step: 2 if a group is half a step

layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uint w[]; };
layout(set = 0, binding = 2) readonly buffer Groups { uint w_groups[]; };
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "activation.glslh"
#include "grouped_weight.glslh"

#define STEP 32u  // of k
#define K4 8u     // vec4 of a step
#define INVOCATIONS (LX * LY)  // invocations of a slice
#define BM (LY * TILE_M)
#define BN (LX * TILE_N)
#define X_ITEMS (BM * 8 / INVOCATIONS)
#define W_ITEMS (BN * BITS / INVOCATIONS)  // a column has BITS words in a step
shared vec4 x_tile[SLICES * 8 * BM];  // [slice][k / 4][m ^ k / 4]: neighbours along k are in other banks
shared vec4 w_tile[SLICES * 8 * BN];  // [slice][k / 4][n ^ k / 4]

vec4 next_x[X_ITEMS];
uint next_w[W_ITEMS];
vec4 sums[TILE_M][TILE_N / 4];

uint thread() { return gl_LocalInvocationID.y * LX + gl_LocalInvocationID.x; }
uint x_at(uint k4, uint m) { return (gl_LocalInvocationID.z * K4 + k4) * BM + (m ^ k4); }
uint w_at(uint k4, uint n) { return (gl_LocalInvocationID.z * K4 + k4) * BN + (n ^ k4); }

// Load this thread's items of the step that begins at k; for rows and columns beyond the end, load the last
// one.
void load_step(uint first_m, uint first_n, uint k) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) {
    uint item = thread() + i * INVOCATIONS, m = min(first_m + item / K4, p.m - 1u);
    next_x[i] = x[(m * p.k + k) / 4u + item % K4];
  }
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint item = thread() + i * INVOCATIONS, n = min(first_n + item / BITS, p.n - 1u);
    next_w[i] = w[(n * p.k + k) / CODES + item % BITS];
  }
}

void store_step(uint first_n, uint k) {
  [[unroll]] for (uint i = 0u; i < X_ITEMS; i++) {
    uint item = thread() + i * INVOCATIONS;
    x_tile[x_at(item % K4, item / K4)] = next_x[i];
  }
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++) {
    uint item = thread() + i * INVOCATIONS, n = min(first_n + item / BITS, p.n - 1u);
    uint group = k / (p.group * GROUPS) * GROUPS + item % BITS * GROUPS / BITS;
    vec2 scale = scale_and_zero(n * (p.k / p.group) + group);
    vec4 weights[VECTORS];
    centred_weights(next_w[i], scale.y, weights);
    [[unroll]] for (uint v = 0u; v < VECTORS; v++)
      w_tile[w_at(item % BITS * VECTORS + v, item / BITS)] = weights[v] * scale.x;
  }
}

void multiply_step() {
  for (uint k4 = 0u; k4 < K4; k4++) {
    vec4 ws[TILE_N];
    [[unroll]] for (uint j = 0u; j < TILE_N; j++) ws[j] = w_tile[w_at(k4, gl_LocalInvocationID.x + j * LX)];
    [[unroll]] for (uint i = 0u; i < TILE_M; i++) {
      vec4 values = x_tile[x_at(k4, gl_LocalInvocationID.y + i * LY)];
      [[unroll]] for (uint j = 0u; j < TILE_N; j++) {
        sums[i][j / 4u][j % 4u] += values.x * ws[j].x;
        sums[i][j / 4u][j % 4u] += values.y * ws[j].y;
        sums[i][j / 4u][j % 4u] += values.z * ws[j].z;
        sums[i][j / 4u][j % 4u] += values.w * ws[j].w;
      }
    }
  }
}

// Add the slices' sums to those of the first slice, through the shared memory of the tiles, which is large
// enough.
void add_slices() {
#if SLICES > 1
  uint first = gl_LocalInvocationID.z - 1u;
  barrier();
  if (gl_LocalInvocationID.z > 0u) {
    [[unroll]] for (uint i = 0u; i < TILE_M * TILE_N / 4u; i++)
      x_tile[(first * TILE_M * TILE_N / 4u + i) * INVOCATIONS + thread()] =
          sums[i / (TILE_N / 4u)][i % (TILE_N / 4u)];
  }
  barrier();
  if (gl_LocalInvocationID.z == 0u) {
    for (uint s = 0u; s < SLICES - 1u; s++) {
      [[unroll]] for (uint i = 0u; i < TILE_M * TILE_N / 4u; i++)
        sums[i / (TILE_N / 4u)][i % (TILE_N / 4u)] +=
            x_tile[(s * TILE_M * TILE_N / 4u + i) * INVOCATIONS + thread()];
    }
  }
#endif
}

void store_results(uint m, uint n) {
  [[unroll]] for (uint j = 0u; j < TILE_N; j++) {
    uint column = n + j * LX;
    float bias = bias_of(min(column, p.n - 1u), p.n * (p.k / p.group));
    [[unroll]] for (uint i = 0u; i < TILE_M; i++) {
      if (m + i * LY < p.m && column < p.n)
        y[(m + i * LY) * p.n + column] = bounded(sums[i][j / 4u][j % 4u] + bias);
    }
  }
}

void main() {
  uint tiles_n = ceil_div(p.n, BN), tile = workgroup_index();
  uint first_n = tile % tiles_n * BN, first_m = tile / tiles_n * BM;
  uint last = p.k - STEP, mine = gl_LocalInvocationID.z * STEP;

  [[unroll]] for (uint i = 0u; i < TILE_M; i++)
    [[unroll]] for (uint j = 0u; j < TILE_N / 4u; j++) sums[i][j] = vec4(0.0);
  load_step(first_m, first_n, min(mine, last));
  for (uint k = 0u; k < p.k; k += SLICES * STEP) {  // all slices iterate equally often
    barrier();  // the previous step has been read
    store_step(first_n, min(k + mine, last));
    barrier();
    load_step(first_m, first_n, min(k + SLICES * STEP + mine, last));
    if (k + mine < p.k) multiply_step();
  }
  add_slices();
  if (gl_LocalInvocationID.z == 0u)
    store_results(first_m + gl_LocalInvocationID.y, first_n + gl_LocalInvocationID.x);
}
