// y[n,t,oy,ox] = sum_{c,ky,kx} x[n,c,oy+ky,ox+kx] * w[t,c,ky,kx]: exact integer correlation of images with
// large windows. The host rearranges images with other strides and dilations into this problem
// (integer/phases.py). A matrix product is the case ow = 1.
//
// Numbers   x = x_offset + sum_i 256^i x_i with digits x_i in [-128, 127], and w likewise; y = sum_ij
//           256^(i+j) (x_i * w_j) + w_offset * (window sum of x) + a constant per template (derived in
//           integer/digits.py), modulo 2^32, or (WIDE) modulo 2^64. Sums modulo 2^32 or 2^64 are exact in any
//           order, so workgroups may share a sum and add to it atomically. MUL32 multiplies 16-bit numbers as
//           one digit, in 32 bits, modulo 2^32.
// Memory    x: [digit][image][channel][x_rows][x_words], words of four int8 along the width (MUL32: two
//           int16); elements outside this stored rectangle are `fill`. w:
//           [group][block][digit][channel][ky][kx / 4][TEMPLATES], words of four int8 (MUL32: [kx], int32).
//           constants: int32 low and high word for each template, then low and high word of w_offset. y:
//           integers (integer_result.glslh).
// Threads   a workgroup is LOCAL_X x LOCAL_Y invocations; each computes TEMPLATES templates x 4 pixels. The
//           pixels are neighbours along x, so the input word of each is a funnel shift of two neighbouring
//           words. With COLUMN (ow = 1), the pixels are LOCAL_Y apart along y instead. A workgroup computes
//           `steps_per_split` steps of the reduction; a step is a block of `channel_block` x `row_block` x
//           `word_block` words of the windows.
// Needs     16 KiB of shared memory for a step's part of the image and of the templates.
#version 450
#extension GL_EXT_control_flow_attributes : require
#if !defined(FLOAT_LANES) && !defined(MUL32)
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 16;
layout(constant_id = 1) const uint LOCAL_Y = 4;
layout(constant_id = 2) const bool COLUMN = false;
layout(constant_id = 3) const bool WIDE = false;        // WIDE: sums are 64-bit
layout(constant_id = 4) const bool WINDOW_SUMS = false; // w_offset is not zero

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#if TEMPLATES == 1
layout(set = 0, binding = 1) readonly buffer W { int w[]; };
#else
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
#endif
layout(set = 0, binding = 2) readonly buffer Constants { ivec2 constants[]; };
layout(set = 0, binding = 3) buffer Y { uint y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "integer_result.glslh"

const uint THREADS = LOCAL_X * LOCAL_Y;
const uint TILE_ROWS = COLUMN ? 4u * LOCAL_Y : LOCAL_Y;

#include "integer_steps.glslh"

Sum4 sums[TEMPLATES], x_sums;           // sums of the current pair of digits; a component is a pixel
uvec4 low[TEMPLATES], high[TEMPLATES];  // totals of all pairs so far, as low and high words
uvec4 x_low, x_high;

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

// Add the sums of one pair of digits to the totals, weighted by the digits' power of 256.
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

void reduce(uint split, uint image, uint group, uint block, uvec2 tile) {
  uint pending = 0u, x_digit = 0u, w_digit = 0u;
  uint last = min((split + 1u) * p.steps_per_split, p.steps);
  for (uint s = split * p.steps_per_split; s < last; s++) {
    Step at = step_at(s);
    if (only_zeros(at, tile)) continue;  // the condition is the same in the whole workgroup
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

  if (WINDOW_SUMS) {
    ivec2 w_offset = constants[p.groups * p.group_templates];
    scale_wide(x_low, x_high, uint(w_offset.x), uint(w_offset.y));
  }
  uvec2 first = tile * uvec2(4u * LOCAL_X, TILE_ROWS) + gl_LocalInvocationID.xy * uvec2(4u, 1u);
  [[unroll]] for (uint t = 0u; t < TEMPLATES; t++) {
    uint in_group = block * TEMPLATES + t, channel = group * p.group_templates + in_group;
    if (in_group >= p.group_templates) continue;
    add_wide(low[t], high[t], x_low, x_high);
    if (split == 0u) add_wide(low[t], high[t], uvec4(constants[channel].x), uvec4(constants[channel].y));
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
      uvec2 at = COLUMN ? uvec2(0u, first.y + r * LOCAL_Y) : uvec2(first.x + r, first.y);
      uint place = at.x < p.ow && at.y < p.oh ? place_of(image, channel, at) : OUTSIDE;
      if (place != OUTSIDE) store(place, low[t][r], high[t][r], p.splits > 1u);
    }
  }
}
