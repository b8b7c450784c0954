// A convolution on matrix units (VK_KHR_cooperative_matrix, subgroup scope), as an implicit GEMM of output
// pixels x output channels: int8 with exact int32 accumulation (INT8), or floats with int8 weights and
// float32 sums. For floats, weights go through shared memory, or (STRAIGHT) directly from memory into
// matrices.
//
// Memory    tiles_int8.glslh, tiles_staged.glslh and tiles_straight.glslh declare the buffers. For each chunk
//           of CH channels, the input pixels of all taps of a tile of TH x TW outputs are loaded into shared
//           memory once. MN neighbouring outputs along w are then MN rows of a matrix for every tap, so taps
//           need no further loads. A pixel's CH channels are followed by 16 bytes of padding, so that
//           neighbouring pixels are in different banks.
// Threads   a workgroup of WGM x WGN subgroups computes TH x TW pixels x BN channels.
// Needs     the matrix shape MM x MN x MK in the device's list, a required subgroup size of SUBGROUP, and
//           shared memory for the input pixels of a tile.
//
//   input, HALO_H x HALO_W      rows of x for a tap    y: TH x TW pixels x BN channels
//   +---------------------+     (MN pixels of a line)  +------------+------------+
//   |  +---------------+ .|                            | subgroup 0 | subgroup 1 |  each FRAGMENTS_M x
//   |  | TH x TW, as a | .|  -------------------->     +------------+------------+  FRAGMENTS_N matrices of
//   |  | tap shifts it | .|     channels: CH a chunk,  | subgroup 2 | subgroup 3 |  MN pixels x MM
//   |  +---------------+ .|     BK of them a step      +------------+------------+  channels
//   +---------------------+                              here WGM x WGN = 2 x 2
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#if INT8
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#extension GL_EXT_control_flow_attributes : require
#if FLOAT16_IMAGES && !STRAIGHT
#extension GL_EXT_shader_16bit_storage : require
#endif

#define BM (TH * TW)
#include "sizes.glslh"
// Tile sizes are specialization constants, so that matrices are loaded with constant strides.
layout(constant_id = 3) const uint STRIDE_H = 1;
layout(constant_id = 4) const uint STRIDE_W = 1;
layout(constant_id = 5) const uint HALO_W = 18;  // columns of input pixels that a line of the tile reads
layout(constant_id = 6) const uint HALO_H = 10;
layout(constant_id = 7) const uint KW = 3;

#include "push.glslh"
#include "workgroup.glslh"
uint group, n;               // group and first output channel of the workgroup
uint image, tile_h, tile_w;  // position of the tile's first output pixel
uint chunks;                 // number of chunks of CH channels in the group

// tiles_int8.glslh, tiles_staged.glslh or tiles_straight.glslh declares the buffers and shared memory, and
// defines
//   void begin()                     set the position and the number of chunks
//   void multiply_chunk(uint chunk)  load the pixels of a chunk, and multiply them by all taps
//   void store_tile()                convert and store the sums
#if INT8
#include "tiles_int8.glslh"
#elif STRAIGHT
#include "tiles_straight.glslh"
#else
#include "tiles_staged.glslh"
#endif

void main() {
  begin();
  clear_acc();
  [[dont_unroll]] for (uint chunk = 0u; chunk < chunks; chunk++) multiply_chunk(chunk);
  store_tile();
}
