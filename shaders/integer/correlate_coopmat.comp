// Exact integer correlation of images with large windows on matrix units (VK_KHR_cooperative_matrix, subgroup
// scope): y[n,t,oy,ox] = sum_{c,ky,kx} x[n,c,oy+ky,ox+kx] * w[t,c,ky,kx]. It is a matrix product of output
// positions and templates. k runs along the window's columns, not along channels, so one channel is enough to
// fill a matrix.
//
// Tile      a workgroup computes TH x TW positions x BN templates. Shared memory holds TW copies of the lines
//           under the tile, one for each column of the tile: the 16-byte words of the copy for column s begin
//           at pixels s + 16 q. A matrix has MN positions, one below the other. For any tap, their inputs are
//           words PITCH apart, so no pixels are gathered. PITCH is odd, so that rows are in different banks.
// Chunk     ROWS lines x WORDS words of the window, of one channel and one digit of x: the data that shared
//           memory holds at a time. A workgroup computes `chunks_per_part` chunks. Each part (a range of
//           chunks) and digit of x has its own sums, which must fit 32 bits (integer/matrix.py ensures it).
// Memory    x: words of four int8, as in correlate.comp. w: int8 [group][chunk][16 k][column], 16 contiguous
//           bytes along k; each digit of a template is a column, and a chunk is padded with zeros to whole
//           iterations of the loop. part: int32 [part][group][image][tile][block of BN columns][position]
//           [column]; the positions of a tile are column by column, so that a matrix is stored with a literal
//           stride.
// Needs     the matrix shape MM x MN x MK in the device's list, and a required subgroup size of SUBGROUP.
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require

#define BM (TH * TW)
#include "sizes.glslh"
layout(constant_id = 3) const uint ROWS = 16;
layout(constant_id = 4) const uint WORDS = 2;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) writeonly buffer Part { uvec4 part[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint images, groups, channels;  // channels: channels of a group
  uint tiles_h, tiles_w, columns;
  uint splits, parts, chunks_per_part, row_blocks, word_blocks, steps;
  uint x_rows, x_words, x_first_row, x_first_word;
  uint fill;                      // for padding: byte i is digit i of the number 0
} p;

#include "workgroup.glslh"
#include "coopmat_matrices.glslh"

#define W_RUNS (BK / 16)
#define W_ROW (W_RUNS + 1)
#define STAGE (BN * W_ROW)
const uint PITCH = WORDS | 1u, LINES = TH + ROWS - 1u, HALO = TW * LINES * PITCH;
shared uvec4 tile[HALO + 2 * STAGE];

uint plane;                   // first word in x of the chunk's channel
uint tile_row, tile_word;     // line and word of the tile's first position in x
uint chunk_row, chunk_word;   // first line and word of the chunk in the window
uint padding;

// Load the chunk's pixels under the tile. An item is one word for each of four columns of the tile.
#define BATCH 2  // number of items that an invocation loads before it stores them
void load_lines() {
  const uint items = WORDS * LINES * (TW / 4u);
  [[dont_unroll]] for (uint first = gl_LocalInvocationIndex; first < items; first += BATCH * INVOCATIONS) {
    uint words[BATCH][5];
    [[unroll]] for (uint b = 0u; b < BATCH; b++) {
      uint item = first + b * INVOCATIONS, line = item / WORDS, q = item - line * WORDS;
      uint four = line / LINES, row = tile_row + chunk_row + line - four * LINES;
      uint word = tile_word + 4u * (chunk_word + q) + four;
      bool inside = item < items && row < p.x_rows;  // unsigned: a negative row is a large number
      [[unroll]] for (uint i = 0u; i < 5u; i++)
        words[b][i] = inside && word + i < p.x_words ? x[plane + row * p.x_words + word + i] : padding;
    }
    [[unroll]] for (uint b = 0u; b < BATCH; b++) {
      uint item = first + b * INVOCATIONS, line = item / WORDS, q = item - line * WORDS;
      uint four = line / LINES, at = (3u * four * LINES + line) * PITCH + q;
      uvec4 run = uvec4(words[b][0], words[b][1], words[b][2], words[b][3]);
      uvec4 next = uvec4(run.yzw, words[b][4]);
      if (item < items) {
        tile[at] = operand(run);
        [[unroll]] for (uint s = 1u; s < 4u; s++)
          tile[at + s * LINES * PITCH] = operand((run >> (8u * s)) | (next << (32u - 8u * s)));
      }
    }
  }
}

const uint W_ACROSS = BN < INVOCATIONS ? BN : INVOCATIONS;
#define W_ITEMS ((BN * W_RUNS + INVOCATIONS - 1) / INVOCATIONS)
uvec4 next_w[SLOTS][W_ITEMS];
uint w_first;

void load_step(uint slot, uint t) {
  uint run = min(t, p.steps - 1u) * W_RUNS + gl_LocalInvocationIndex / W_ACROSS % W_RUNS;
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++)
    next_w[slot][i] = w[w_first + (run + i * (INVOCATIONS / W_ACROSS)) * p.columns];
}

void store_step(uint slot, uint stage) {
  uint t = gl_LocalInvocationIndex;
  [[unroll]] for (uint i = 0u; i < W_ITEMS; i++)
    if (t < BN * W_RUNS)
      tile[HALO + stage * STAGE + t % W_ACROSS * W_ROW + t / W_ACROSS + i * (INVOCATIONS / W_ACROSS)] =
          next_w[slot][i];
}

// Return the offset in shared memory of a subgroup's positions for step t. A chunk's lines follow each other
// along k without gaps. If WORDS is odd, the words beyond the last line are multiplied by zeros.
uint x_place(uint t, uint stage) {
  uint run = min(t, p.steps - 1u) * W_RUNS, line = run / WORDS;
  return subgroup_m / TH * (LINES * PITCH) + run + line * (PITCH - WORDS);
}
uint w_place(uint stage) { return HALO + stage * STAGE + subgroup_n * W_ROW; }
#define X_RUN(j) ((j) * MN / TH * (LINES * PITCH) + (j) * MN % TH * PITCH)
#define X_STRIDE PITCH
#define LOAD_ONCE load_lines()
#include "coopmat_pipeline.glslh"

void find_chunk(uint chunk, uint digit, uint group, uint image) {
  chunk_word = chunk % p.word_blocks * WORDS;
  uint row_block = chunk / p.word_blocks, channel = row_block / p.row_blocks;
  chunk_row = (row_block - channel * p.row_blocks) * ROWS;
  plane = (((digit * p.images + image) * p.groups + group) * p.channels + channel) * p.x_rows * p.x_words;
}

void main() {
  uint index = workgroup_index(), tiles = p.tiles_h * p.tiles_w, tiles_n = p.columns / BN;
  // place: index of the tile among the tiles of all parts
  uint place = index / tiles_n, n = index % tiles_n * BN;
  uint image_tile = place / tiles, at = place - image_tile * tiles;
  uint image = image_tile % p.images, group = image_tile / p.images % p.groups;
  uint number = image_tile / (p.images * p.groups), digit = number / p.splits, split = number % p.splits;
  tile_row = at / p.tiles_w * TH - p.x_first_row;
  tile_word = at % p.tiles_w * (TW / 4u) - p.x_first_word;
  padding = bitfieldExtract(p.fill, int(8u * digit), 8) * 0x01010101u;
  uint chunks = p.channels * p.row_blocks * p.word_blocks, first = split * p.chunks_per_part;
  uint t = gl_LocalInvocationIndex;
  clear_acc();
  [[dont_unroll]] for (uint chunk = first; chunk < min(first + p.chunks_per_part, chunks); chunk++) {
    find_chunk(chunk, digit, group, image);
    w_first = ((group * chunks + chunk) * p.steps * W_RUNS) * p.columns + n + t % W_ACROSS;
    barrier();
    multiply_steps(p.steps);
  }
  uint to = (index * BM + subgroup_m) * (BN / 4) + subgroup_n / 4u;
  [[unroll]] for (uint i = 0u; i < FRAGMENTS_N; i++) [[unroll]] for (uint j = 0u; j < FRAGMENTS_M; j++)
    coopMatStore(acc[i][j], part, to + j * MN * (BN / 4) + i * (MM / 4), BN / 4,
        gl_CooperativeMatrixLayoutColumnMajor);
}
