// The mean of each channel of int8 images: y = saturate(round_half_even(float(sum(x - x_zero)) * multiplier)
// + y_zero), with an exact sum.
//
// Memory    x: int8 images as vectors of pixels (pixels.glslh); y: int8 images of one pixel, or an int8
//           matrix (images, channels).
// Threads   a workgroup computes ACROSS neighbouring blocks of channels of one image, with LOCAL_X / ACROSS
//           invocations for each block. Invocation i of a block adds the block's vectors i, i + LOCAL_X /
//           ACROSS, and so on. Then the invocations reduce in shared memory; each iteration halves the number
//           of active invocations.
// OFFSET    y = saturate(round_half_even(float(sum(x)) * multiplier + offset)), each operation rounded to
//           float32.
// EXCITE    y is the gates of the channels instead of the means. The last workgroup of an image to finish
//           computes them from the image's means (excite.glslh).
#version 450
#extension GL_EXT_control_flow_attributes : require
#if defined(EXCITE) && !defined(FLOAT_LANES)
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 128;
layout(constant_id = 1) const uint ACROSS = 1;
layout(constant_id = 3) const uint AT_ONCE = 1;  // loads that an invocation issues together
layout(constant_id = 2) const uint TO = 0;  // the layout of y:
#define AS_X 0u
#define TO_4W4C 1u
#define TO_4H4W 2u  // matrix (images, channels) in kPackedInt8_4H4W

layout(constant_id = 9) const bool OFFSET = false;
layout(constant_id = 8) const bool LONG = false;  // an invocation adds more than MOST vectors

layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { ivec4 y[]; };
#ifdef EXCITE
layout(set = 0, binding = 2) readonly buffer W1 { ivec4 w1[]; };
layout(set = 0, binding = 3) readonly buffer Channels1 { ivec4 channels1[]; };
layout(set = 0, binding = 4) readonly buffer W2 { ivec4 w2[]; };
layout(set = 0, binding = 5) readonly buffer Channels2 { ivec4 channels2[]; };
layout(set = 0, binding = 6) coherent buffer Squeezed { int squeezed[]; };  // means of all images
layout(set = 0, binding = 7) coherent buffer Arrivals { uint arrivals[]; };  // finished workgroups by image
#endif

layout(push_constant) uniform Push {
  uint first_group;
  uint n, c, h, w, blocks;
  int x_zero, y_zero, y_min, y_max;
  float multiplier, offset;
#ifdef EXCITE
  uint hidden4;
  int zero1, min1, max1, zero2, min2, max2;
#endif
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "requantize.glslh"
#include "exact_sum.glslh"
#include "pixels.glslh"

#define WORDS (BLOCKED == 1 ? 4 : 1)  // words of four channels in a vector
shared ivec4 sums[WORDS * LOCAL_X];
#ifdef EXCITE
#include "excite.glslh"
shared uint arrived;

// If this workgroup is the last of its image to finish, compute the gates from the image's means, all of
// which are now in memory.
void excite_when_last(uint image, uint tiles, uint me) {
  uint c4 = ceil_div(p.c, 4u);
  memoryBarrierBuffer(); barrier();
  if (me == 0u) arrived = atomicAdd(arrivals[image], 1u);
  memoryBarrierBuffer(); barrier();
  if (arrived + 1u == tiles) {
    if (me == 0u) arrivals[image] = 0u;
    for (uint i = me; i < c4; i += LOCAL_X) means[i] = squeezed[image * c4 + i];
    barrier();
    excite(image, me);
  }
}
#endif

// Requantize, clamp to the bounds of y's type, and return the result as stored (int8).
int round_with_offset(int acc) {
  float v = clamp(sum(multiply(int_to_float(acc), p.multiplier), p.offset), -512.0, 512.0);
  return clamp(round_to_int(v), p.y_min, p.y_max) - (p.y_min + 128);
}

Int8x4 mean(ivec4 total) {
  ivec4 acc = total - (p.x_zero + 128) * int(p.h * p.w), q;
  [[unroll]] for (int i = 0; i < 4; i++)
    q[i] = OFFSET ? round_with_offset(acc[i]) : requantize(acc[i], p.multiplier, p.y_zero, p.y_min, p.y_max);
  return int8x4_pack(q);
}

// Store the results of four channels, for layouts of y in which a vector holds one word of an image.
void store_word(uint image, uint c4, uint c4s, Int8x4 word) {
  uint at = (TO == TO_4H4W ? image / 4u : image) * c4s + c4, row = image % 4u;
  if (TO != TO_4H4W) y[at] = ivec4(word, 0, 0, 0);
  else if (row == 0u) y[at].x = word;
  else if (row == 1u) y[at].y = word;
  else if (row == 2u) y[at].z = word;
  else y[at].w = word;
}

ivec4 total[WORDS];  // sums of x + 128
uvec2 halves[WORDS];  // 16-bit partial sums: .x of bytes 0 and 2, .y of bytes 1 and 3
const uint MOST = 256u / VECTOR_PIXELS;  // most vectors that 16-bit sums can add without overflow

void clear_total() {
  [[unroll]] for (int k = 0; k < WORDS; k++) { total[k] = ivec4(0); halves[k] = uvec2(0u); }
}

void flush() {
  [[unroll]] for (int k = 0; k < WORDS; k++) {
    uvec2 low = halves[k] & 0xffffu, high = halves[k] >> 16;
    total[k] += ivec4(low.x, low.y, high.x, high.y);
    halves[k] = uvec2(0u);
  }
}

// Add vector i of the pixels to the sums.
void add(ivec4 vector, uint i, uint columns) {
  uint pixels = 4u;  // pixels of the line in this vector
#if !BLOCKED
  if (AT_ONCE == 1u || p.w % 4u != 0u) pixels = p.w - 4u * (i % columns);
#endif
  [[unroll]] for (int k = 0; k < 4; k++) {
    uint bytes = uint(k) < pixels ? uint(vector[k]) ^ 0x80808080u : 0u;
    halves[BLOCKED == 1 ? k : 0] += uvec2(bytes, bytes >> 8) & 0x00ff00ffu;
  }
}

void main() {
  uint tiles = ceil_div(p.blocks, ACROSS), group = workgroup_index(), image = group / tiles;
  uint me = gl_LocalInvocationID.x, block = (group - image * tiles) * ACROSS + me % ACROSS;
  uint columns = ceil_div(p.w, VECTOR_PIXELS), vectors = p.h * columns, step_ = LOCAL_X / ACROSS;
  uint first = BLOCKED == 1 ? (block * p.n + image) * vectors : image * vectors * p.blocks + block;
  clear_total();
  if (block < p.blocks) {
    uint i = me / ACROSS, apart = BLOCKED == 1 ? 1u : p.blocks;
    do {
      uint end = LONG ? min(i + MOST * step_, vectors) : vectors;
      for (; AT_ONCE > 1u && i + (AT_ONCE - 1u) * step_ < end; i += AT_ONCE * step_) {
        ivec4 loaded[AT_ONCE];
        [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) loaded[k] = x[first + (i + k * step_) * apart];
        [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) add(loaded[k], i + k * step_, columns);
      }
      for (; i < end; i += step_) add(x[first + i * apart], i, columns);
      flush();
    } while (LONG && i < vectors);
  }
  [[unroll]] for (uint k = 0u; k < WORDS; k++) sums[k * LOCAL_X + me] = total[k];
  barrier();
  for (uint half_ = LOCAL_X / 2u; half_ >= ACROSS; half_ /= 2u) {
    if (me < half_) {
      [[unroll]] for (uint k = 0u; k < WORDS; k++) sums[k * LOCAL_X + me] += sums[k * LOCAL_X + me + half_];
    }
    barrier();
  }
  if (me < ACROSS && block < p.blocks) {
#if BLOCKED
    ivec4 words;
    [[unroll]] for (uint k = 0u; k < WORDS; k++) words[k] = mean(sums[k * LOCAL_X + me]);
#if defined(EXCITE)
    uint blocks = ceil_div(p.c, 4u);
    [[unroll]] for (uint k = 0u; k < WORDS; k++)
      if (4u * block + k < blocks) squeezed[image * blocks + 4u * block + k] = words[k];
#else
    if (TO == AS_X) {
      y[block * p.n + image] = words;
    } else {
      uint c4s = ceil_div(p.c, 4u);
      [[unroll]] for (uint k = 0u; k < WORDS; k++)
        if (4u * block + k < c4s) store_word(image, 4u * block + k, c4s, words[k]);
    }
#endif
#elif defined(EXCITE)
    squeezed[image * p.blocks + block] = mean(sums[me]);
#else
    store_word(image, block, p.blocks, mean(sums[me]));
#endif
  }
#ifdef EXCITE
  excite_when_last(image, tiles, me);
#endif
}
