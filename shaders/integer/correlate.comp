// y[n,t,oy,ox] = sum_{c,ky,kx} x[n,c,oy+ky,ox+kx] * w[t,c,ky,kx]: exact integer correlation of images with
// large windows. Other strides and dilations are this one on rearranged images (integer/phases.py); matrix
// products are its case ow = 1.
//
// Numbers   x = x_offset + sum_i 256^i x_i with digits x_i in [-128, 127], and w alike; y = sum_ij 256^(i+j)
//           (x_i * w_j) plus w_offset * (window sum of x) plus a constant per template (integer/digits.py
//           derives it), modulo 2^32, or modulo 2^64 where WIDE. Reductions are exact modulo that size in any
//           order, so they may be split and added atomically. DOT 4 multiplies 16-bit numbers in 32 bits, one
//           digit, modulo 2^32.
// Memory    x: [digit][image][channel][x_rows][x_words], 4 bytes a word along the width (DOT 4: 2 int16);
//           what lies outside of the stored rectangle is `fill`. w: [group][block][digit][channel][ky][kx /
//           4][TEMPLATES], Int8x4 (DOT 4: [kx], int). constants: low and high word per template. y: int32, or
//           low and high word of int64, [image][template][oh][ow].
// Threads   LOCAL_X x LOCAL_Y; each has TEMPLATES templates x 4 pixels: neighbours along x, whose words are
//           shifted out of two neighbouring ones; or (COLUMN, ow = 1) LOCAL_Y apart along y. A workgroup
//           takes `steps_per_split` steps of the reduction; a step is a block of `channel_block` x
//           `row_block` x `word_block` words of the windows.
// Needs     16 KiB of shared memory: the step's part of the image and of the templates.
#version 450
#extension GL_EXT_control_flow_attributes : require
#if DOT < 3
#extension GL_EXT_integer_dot_product : require
#endif

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 16;
layout(constant_id = 1) const uint LOCAL_Y = 4;
layout(constant_id = 2) const bool COLUMN = false;
layout(constant_id = 3) const bool WIDE = false;        // 64-bit sums
layout(constant_id = 4) const bool WINDOW_SUMS = false; // w_offset is not zero

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#if TEMPLATES == 1
layout(set = 0, binding = 1) readonly buffer W { int w[]; };
#else
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
#endif
layout(set = 0, binding = 2) readonly buffer Constants { ivec2 constants[]; };
layout(set = 0, binding = 3) buffer Y { uint y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint tiles_x, tiles_y, blocks, groups, images, splits;
  uint steps, steps_per_split;
  uint oh, ow, group_templates, group_channels, kh, kwords;
  uint channel_block, row_block, word_block;
  uint x_rows, x_words, x_first_row, x_first_word;
  uint x_digits, w_digits;
  int fill;                         // digit i of the number 0 in byte i
  uint flush_words;                 // words after which the sums of the dot form could overflow
  int w_offset_low, w_offset_high;
} p;

#include "workgroup.glslh"
#include "integer_operands.glslh"
#include "wide.glslh"

const uint THREADS = LOCAL_X * LOCAL_Y;
const uint TILE_ROWS = COLUMN ? 4u * LOCAL_Y : LOCAL_Y;

Sum4 sums[TEMPLATES], x_sums;           // of the digit pair at hand; component = pixel
uvec4 low[TEMPLATES], high[TEMPLATES];  // of everything so far
uvec4 x_low, x_high;

struct Step { uint x_digit, w_digit, channel, channels, ky, rows, word, words; };

Step step_at(uint s) {
  uint word_blocks = ceil_div(p.kwords, p.word_block), row_blocks = ceil_div(p.kh, p.row_block);
  uint channel_blocks = ceil_div(p.group_channels, p.channel_block);
  Step at;
  at.word = s % word_blocks * p.word_block;
  at.words = min(p.word_block, p.kwords - at.word);
  s /= word_blocks;
  at.ky = s % row_blocks * p.row_block;
  at.rows = min(p.row_block, p.kh - at.ky);
  s /= row_blocks;
  at.channel = s % channel_blocks * p.channel_block;
  at.channels = min(p.channel_block, p.group_channels - at.channel);
  s /= channel_blocks;
  at.w_digit = s % p.w_digits;
  at.x_digit = s / p.w_digits;
  return at;
}

// Shared words of one line of the image tile. COLUMN: odd, so that lines start in different banks.
uint line_words(Step at) { return COLUMN ? at.words | 1u : LOCAL_X * SHARED_PER_FOUR_PIXELS + at.words; }

void load_image(Step at, uint image, uint group, uvec2 tile) {
  uint stride = line_words(at), lines = TILE_ROWS + at.rows - 1u;
  uint first_row = tile.y * TILE_ROWS + at.ky - p.x_first_row;
  uint first = tile.x * LOCAL_X * SHARED_PER_FOUR_PIXELS + at.word;
  uint plane =
      (at.x_digit * p.images + image) * p.groups * p.group_channels + group * p.group_channels + at.channel;
  for (uint i = gl_LocalInvocationIndex; i < at.channels * lines * stride; i += THREADS) {
    uint line = i / stride, channel = line / lines, row = first_row + line - channel * lines,
         element = first + i - line * stride;
    uint word = element / SHARED_PER_WORD - p.x_first_word;
    bool inside = row < p.x_rows && word < p.x_words;  // unsigned: what lies before is far beyond
    int value =
        inside ? x[((plane + channel) * p.x_rows + row) * p.x_words + word] : fill_word(p.fill, at.x_digit);
    image_tile[i] = shared_x(value, element);
  }
}

void load_templates(Step at, uint first_block) {
  const uint PER_WORD = TEMPLATES == 1 ? 1u : uint(TEMPLATES) / 4u;
  uint base = (first_block * p.w_digits + at.w_digit) * p.group_channels + at.channel;
  uint row_size = at.words * PER_WORD;
  for (uint i = gl_LocalInvocationIndex; i < at.channels * at.rows * row_size; i += THREADS) {
    uint line = i / row_size, channel = line / at.rows, row = at.ky + line - channel * at.rows;
    uint word = ((base + channel) * p.kh + row) * p.kwords + at.word;
    store_template(i, w[word * PER_WORD + i - line * row_size]);
  }
}

void multiply(XOperand v[4], uint word) {
  [[unroll]] for (uint t = 0u; t < TEMPLATES; t++) {
    WOperand wt = template_word(word, t);
    sums[t] += Sum4(dot4x8(v[0], wt), dot4x8(v[1], wt), dot4x8(v[2], wt), dot4x8(v[3], wt));
  }
  if (WINDOW_SUMS) x_sums += Sum4(lane_sum(v[0]), lane_sum(v[1]), lane_sum(v[2]), lane_sum(v[3]));
}

void accumulate(Step at) {
  uint stride = line_words(at), lines = TILE_ROWS + at.rows - 1u, word = 0u;
  for (uint channel = 0u; channel < at.channels; channel++) for (uint row = 0u; row < at.rows; row++) {
    uint line = (channel * lines + row + gl_LocalInvocationID.y) * stride;
    XOperand v[4];
    if (COLUMN) {
      for (uint i = 0u; i < at.words; i++) {
        [[unroll]] for (uint r = 0u; r < 4u; r++) v[r] = tile_operand(line + r * LOCAL_Y * stride + i);
        multiply(v, word++);
      }
    } else {
      line += gl_LocalInvocationID.x * SHARED_PER_FOUR_PIXELS;
      Window window = first_window(line);
      for (uint i = 0u; i < at.words; i++) {
        slide(window, line, i, v);
        multiply(v, word++);
      }
    }
  }
}

// Adds the sums of one digit pair, with the digits' weight, to the totals.
void flush(uint x_digit, uint w_digit) {
  [[unroll]] for (uint t = 0u; t < TEMPLATES; t++) {
    add_shifted(low[t], high[t], ivec4(sums[t]), 8u * (x_digit + w_digit));
    sums[t] = Sum4(0);
  }
  if (WINDOW_SUMS) {
    if (w_digit == 0u) add_shifted(x_low, x_high, ivec4(x_sums), 8u * x_digit);
    x_sums = Sum4(0);
  }
}

// Whether the step meets nothing but padding whose operand is 0, and adds nothing.
bool only_zeros(Step at, uvec2 tile) {
  int first_row = int(tile.y * TILE_ROWS + at.ky) - int(p.x_first_row);
  bool outside = first_row + int(TILE_ROWS + at.rows) <= 1 || first_row >= int(p.x_rows);
  return outside && shared_x(fill_word(p.fill, at.x_digit), 0u) == 0;
}

void reduce(uint split, uint image, uint group, uint block, uvec2 tile) {
  uint pending = 0u, x_digit = 0u, w_digit = 0u;
  uint last = min((split + 1u) * p.steps_per_split, p.steps);
  for (uint s = split * p.steps_per_split; s < last; s++) {
    Step at = step_at(s);
    if (only_zeros(at, tile)) continue;  // the same for the whole workgroup
    uint words = at.channels * at.rows * at.words;
    if (pending > 0u && (pending + words > p.flush_words || at.x_digit != x_digit || at.w_digit != w_digit)) {
      flush(x_digit, w_digit);
      pending = 0u;
    }
    x_digit = at.x_digit;
    w_digit = at.w_digit;
    pending += words;
    barrier();
    load_image(at, image, group, tile);
    load_templates(at, group * p.blocks + block);
    barrier();
    accumulate(at);
  }
  flush(x_digit, w_digit);
}

void store(uint index, uint low_word, uint high_word) {
  bool add = p.splits > 1u;  // several workgroups share a result, and y is zero before
  if (!WIDE) {
    if (add) atomicAdd(y[index], low_word); else y[index] = low_word;
  } else if (add) {
    // each addition carries by itself, so their order does not matter
    uint before = atomicAdd(y[2u * index], low_word);
    atomicAdd(y[2u * index + 1u], high_word + uint(before + low_word < before));
  } else {
    y[2u * index] = low_word;
    y[2u * index + 1u] = high_word;
  }
}

void main() {
  uint id = workgroup_index();
  uvec2 tile = uvec2(id % p.tiles_x, id / p.tiles_x % p.tiles_y);
  id /= p.tiles_x * p.tiles_y;
  uint block = id % p.blocks, group = id / p.blocks % p.groups;
  id /= p.blocks * p.groups;
  uint image = id % p.images, split = id / p.images;

  [[unroll]] for (uint t = 0u; t < TEMPLATES; t++) {
    sums[t] = Sum4(0);
    low[t] = uvec4(0u);
    high[t] = uvec4(0u);
  }
  x_sums = Sum4(0);
  x_low = uvec4(0u);
  x_high = uvec4(0u);
  reduce(split, image, group, block, tile);

  if (WINDOW_SUMS) scale_wide(x_low, x_high, uint(p.w_offset_low), uint(p.w_offset_high));
  uvec2 first = tile * uvec2(4u * LOCAL_X, TILE_ROWS) + gl_LocalInvocationID.xy * uvec2(4u, 1u);
  [[unroll]] for (uint t = 0u; t < TEMPLATES; t++) {
    uint in_group = block * TEMPLATES + t, channel = group * p.group_templates + in_group;
    if (in_group >= p.group_templates) continue;
    add_wide(low[t], high[t], x_low, x_high);
    if (split == 0u) add_wide(low[t], high[t], uvec4(constants[channel].x), uvec4(constants[channel].y));
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
      uvec2 at = COLUMN ? uvec2(0u, first.y + r * LOCAL_Y) : uvec2(first.x + r, first.y);
      if (at.x >= p.ow || at.y >= p.oh) continue;
      store(((image * p.groups * p.group_templates + channel) * p.oh + at.y) * p.ow + at.x, low[t][r],
          high[t][r]);
    }
  }
}
