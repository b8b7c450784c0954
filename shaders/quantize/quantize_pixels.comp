// y = saturate(round_half_even(x / scale) + zero_point) for images: ONNX QuantizeLinear per tensor, exactly.
// NaN becomes the lower bound, infinities saturate.
//
// The shader first computes x * (1 / scale), which is rounded. If this product is farther than `safe` from
// the nearest integer (near a tie), the shader computes the exact quotient (exact_float.glslh).
//
// Memory    x: float32, row-major, read as bits because a device may flush subnormal floats; y: int8 in
//           kPackedInt8_16C (BLOCKED) or kPackedInt8_4W4C; padding lanes get the zero point.
// Threads   one invocation quantizes 16 channels of one pixel; neighbouring invocations quantize neighbouring
//           pixels.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(constant_id = 1) const bool LOAD_AHEAD = true;  // load 16 channels at once; false: four at a time

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
#if BLOCKED
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };
#else
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint threads;
  uint n, c, h, w;
  float scale;
  int zero_point;
  float inverse, low, high, safe;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "quantized.glslh"

uint columns() { return BLOCKED == 1 ? p.w : 4u * ceil_div(p.w, 4u); }

// Return the float bits of four channels of a pixel; channels outside the image are 0.
uvec4 loaded(uint first, uint channel) {
  uvec4 bits = uvec4(0u);
  [[unroll]] for (uint lane = 0u; lane < 4u; lane++)
    if (channel + lane < p.c) bits[lane] = x[first + (channel + lane) * p.h * p.w];
  return bits;
}

// Quantize 16 channels of a pixel; return their four words.
ivec4 words_together(uint first, uint channel) {
  uvec4 bits[4];
  [[unroll]] for (uint k = 0u; k < 4u; k++) bits[k] = loaded(first, channel + 4u * k);
  bool sure = true;
  ivec4 words;
  [[unroll]] for (uint k = 0u; k < 4u; k++) words[k] = quantized_word(bits[k], sure);
  if (!sure) {
    [[dont_unroll]] for (uint k = 0u; k < 4u; k++)
      words = ivec4(words.yzw, exact_word(loaded(first, channel + 4u * k)));
  }
  return words;
}

ivec4 words_in_turn(uint first, uint channel) {
  ivec4 words = ivec4(0);
  [[dont_unroll]] for (uint k = 0u; k < 4u; k++) {
    uvec4 bits = loaded(first, channel + 4u * k);
    bool sure = true;
    int word = quantized_word(bits, sure);
    if (!sure) word = exact_word(bits);
    words = ivec4(words.yzw, word);
  }
  return words;
}

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uint line = i / columns(), w = i - line * columns(), plane = line / p.h, block = plane / p.n;
  uint image = plane - block * p.n, h = line - plane * p.h;
  uint first = (image * p.c * p.h + h) * p.w + min(w, p.w - 1u);
  if (i < p.threads) {
    ivec4 words = LOAD_AHEAD ? words_together(first, 16u * block) : words_in_turn(first, 16u * block);
#if BLOCKED
    y[i] = words;
#else
    uint c4 = ceil_div(p.c, 4u), at = 4u * ((image * p.h + h) * (columns() / 4u) + w / 4u) * c4 + w % 4u;
    [[unroll]] for (uint k = 0u; k < 4u; k++)
      if (4u * block + k < c4) y[at + 4u * (4u * block + k)] = words[k];
#endif
  }
}
