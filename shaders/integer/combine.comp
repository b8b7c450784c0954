// Finish an exact integer correlation on matrix units: add the partial sums of all parts and digits, which
// correlate_coopmat.comp has computed, and store the integers.
//
//   y = constant + sum_parts sum_ij 256^(i+j) part[digit i of x][digit j of w] + w_offset * (window sum of x)
//
// modulo 2^32, or (WIDE) 2^64. The window sums are the results of one further template, which is all ones.
//
// Memory    part: int32 partial sums, as correlate_coopmat.comp writes them; the digits of a template are
//           `quads` * 4 columns apart, and the template of ones is the last. constants: int32 low and high
//           word for each template, then low and high word of w_offset. y: integers (integer_result.glslh).
// Threads   one invocation computes four templates at one position; two neighbouring invocations read 32
//           contiguous bytes. With few positions, memory latency dominates, so the loads of AT_ONCE parts are
//           issued together.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const uint TH = 16;
layout(constant_id = 2) const uint TW = 8;
layout(constant_id = 3) const bool WIDE = false;
layout(constant_id = 4) const bool WINDOW_SUMS = false;
layout(constant_id = 5) const uint AT_ONCE = 1;  // parts whose loads are issued together
layout(constant_id = 6) const uint BN = 128;     // columns of a block, which are contiguous

layout(set = 0, binding = 0) readonly buffer Part { uvec4 part[]; };
layout(set = 0, binding = 1) readonly buffer Constants { ivec2 constants[]; };
layout(set = 0, binding = 2) buffer Y { uint y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "integer_result.glslh"

#define MOST_AT_ONCE 8
ivec4 sums[MOST_AT_ONCE];
void load_parts(uint first, uint size, uint count) {
  [[unroll]] for (uint b = 0u; b < AT_ONCE; b++)
    sums[b] = b < count ? ivec4(part[first + b * size]) : ivec4(0);
}

// Return the index in `part` of columns 4 * quad to 4 * quad + 3 of position `place` in a tile.
uint vector_of(uint tile, uint place, uint quad) {
  const uint QUADS = BN / 4u;
  uint block = tile * (p.columns / BN) + quad / QUADS;
  return (block * TH * TW + place) * QUADS + quad % QUADS;
}

void main() {
  uint id = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uint pair = id % 2u, s = id / 2u % TW, r = id / (2u * TW) % TH;
  id /= 2u * TW * TH;
  uint pairs = ceil_div(p.quads, 2u), quad = 2u * (id % pairs) + pair, tile = id / pairs;
  uint tiles = p.tiles_h * p.tiles_w, image_tile = tile / tiles, at = tile - image_tile * tiles;
  uint image = image_tile % p.images, group = image_tile / p.images;
  uvec2 place = uvec2(at % p.tiles_w * TW + s, at / p.tiles_w * TH + r);
  if (quad < p.quads && group < p.groups && place.x < p.ow && place.y < p.oh) {
    uint part_size = p.groups * p.images * tiles * TH * TW * (p.columns / 4u), in_tile = s * TH + r;
    uvec4 low = uvec4(0u), high = uvec4(0u), x_low = uvec4(0u), x_high = uvec4(0u);
    for (uint digit = 0u; digit < p.x_digits; digit++)
      for (uint split = 0u; split < p.splits; split += AT_ONCE) {
        uint from = (digit * p.splits + split) * part_size, count = p.splits - split;
        for (uint j = 0u; j < p.w_digits; j++) {
          load_parts(from + vector_of(tile, in_tile, j * p.quads + quad), part_size, count);
          [[unroll]] for (uint b = 0u; b < AT_ONCE; b++) add_shifted(low, high, sums[b], 8u * (digit + j));
        }
        if (WINDOW_SUMS) {
          load_parts(from + vector_of(tile, in_tile, p.w_digits * p.quads), part_size, count);
          [[unroll]] for (uint b = 0u; b < AT_ONCE; b++) add_shifted(x_low, x_high, sums[b].xxxx, 8u * digit);
        }
      }
    if (WINDOW_SUMS) {
      ivec2 w_offset = constants[p.groups * p.group_templates];
      scale_wide(x_low, x_high, uint(w_offset.x), uint(w_offset.y));
      add_wide(low, high, x_low, x_high);
    }
    [[unroll]] for (uint t = 0u; t < 4u; t++) {
      uint in_group = 4u * quad + t, channel = group * p.group_templates + in_group;
      if (in_group >= p.group_templates) continue;
      uvec4 l = uvec4(low[t]), h = uvec4(high[t]);
      add_wide(l, h, uvec4(constants[channel].x), uvec4(constants[channel].y));
      uint to = place_of(image, channel, place);
      if (to != OUTSIDE) store(to, l.x, h.x, false);
    }
  }
}
