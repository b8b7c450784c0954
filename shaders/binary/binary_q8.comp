// y = a op b for two int8 tensors with scales and zero points. The host computes a table of all 65,536
// results; every result equals the table's entry.
//
// OP_ADD and OP_MUL compute the result in float32 and round it. If the float result is farther than `safe`
// from the nearest integer, the device's own rounding could change it; the shader then reads the result from
// the table. With SURE, no table is needed. The host sets SURE for devices that round products and sums to
// nearest even: always for OP_MUL, and for OP_ADD if it has checked every result for these parameters.
//   OP_ADD    a * ra + b * rb + offset          OP_MUL   (a - a_zero) * (b - b_zero) * ra + offset
//   OP_TABLE  read every result from the table
//
// Memory    a, b, y: int8, four to a word, in the same layout; table: int8 results, four to a word; the
//           result of (a, b) is byte 256 * (b + 128) + (a + 128).
//   SAME      a, b and y have equal shapes and any layout, and are read as vectors of four words. With
//             REPEATED, an operand may have fewer vectors, which repeat over y.
//   PIXELS    images that broadcast, in kPackedInt8_16C or kPackedInt8_4W4C (pixels.glslh).
//   otherwise tensors that broadcast: a word of y holds four elements along the axis LANE_AXIS. All four are
//             computed from one word of a and one word of b.
// Threads   one invocation writes one vector (SAME, PIXELS) or one word.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OP_ADD 0
#define OP_MUL 1
#define OP_TABLE 2

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;
// FOLDED: the layout is applied to the shape (1, 1, product of the other dims, last dim)
layout(constant_id = 2) const bool FOLDED = false;
layout(constant_id = 3) const uint LANE_AXIS = 1;
layout(constant_id = 4) const bool GATE = false;  // b: images of one pixel in 4W4C; y: images in 16C
layout(constant_id = 5) const bool ONE_PIXEL = false;  // PIXELS: images of b have one pixel; a has y's shape
layout(constant_id = 6) const bool SURE = false;  // the float formula is exact for all inputs: no table
layout(constant_id = 7) const bool REPEATED = false;  // SAME: a_n vectors of a, b_n of b, which repeat over y

#if SAME || PIXELS
#define Element ivec4
#else
#define Element int
#endif
layout(set = 0, binding = 0) readonly buffer A { Element a[]; };
layout(set = 0, binding = 1) readonly buffer B { Element b[]; };
layout(set = 0, binding = 2) readonly buffer Table { int table[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Element y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;             // number of vectors or words of y
  float ra, rb, offset, safe;
  int a_zero, b_zero, y_min, y_max;
  uint y_n, y_c, y_h, y_w, a_n, a_c, a_h, a_w, b_n, b_c, b_h, b_w;  // shapes; broadcast only
  int y_shift;            // OP_MUL: stored int8 = result - y_shift; y_min and y_max bound the stored number
  uint first_multiplier, first_shift, second_multiplier, second_shift, third_multiplier, third_shift;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "exact_float.glslh"
#include "layout/any.glslh"
#if PIXELS
#define DIVISORS
#include "pixels.glslh"
#endif

#define VECTORS (SAME || PIXELS)
#include "combine.glslh"

#if PIXELS
// Return the index of the vector of an operand that is combined with the vector `at` of y; `size` is the
// operand's shape.
uint place(Pixels at, uvec4 size) {
  uint image = min(at.image, size.x - 1u), block = min(at.block, blocks_of(size.y) - 1u);
  return vector_of(Pixels(image, block, min(at.h, size.z - 1u), min(at.w, size.w - 1u)), size);
}

ivec4 spread(ivec4 words, uvec4 size, uvec4 y_size) {
  if (BLOCKED == 0 && size.w < y_size.w) words = words.xxxx;
  if (size.y < y_size.y) {
    if (BLOCKED == 1) words = words.xxxx;
    [[unroll]] for (int k = 0; k < 4; k++) words[k] = int8x4_broadcast(int8x4_lane(words[k], 0u));
  }
  return words;
}

// Load 16 channels of an image of one pixel. In kPackedInt8_4W4C, they are in four vectors.
ivec4 gate_at(Pixels at, uvec4 size) {
  uint blocks = ceil_div(size.y, 4u), first = min(at.image, size.x - 1u) * blocks;
  ivec4 words;
  [[unroll]] for (uint k = 0u; k < 4u; k++) words[k] = b[first + min(4u * at.block + k, blocks - 1u)].x;
  return words;
}
#elif !SAME
uvec4 extent_of(uvec4 dims) { return FOLDED ? uvec4(1u, 1u, dims.x * dims.y * dims.z, dims.w) : dims; }

// Return the index of the word that holds element e of an operand of shape `dims`, and the lane of e in
// that word. Indices of e beyond `dims` are clamped, which broadcasts the operand.
uvec2 place(uvec4 e, uvec4 dims) {
  uvec4 extent = extent_of(dims);
  e = min(e, dims - 1u);
  if (FOLDED) e = from_row_major(row_major(e, dims), extent);
  return uvec2(any_layout_word(LAYOUT, e, extent), any_layout_lane(LAYOUT, e));
}

// Return `word`; if `one`, return its lane `lane` repeated in all four lanes.
Int8x4 lanes(Int8x4 word, uint lane, bool one) {
  return one ? int8x4_broadcast(int8x4_lane(word, lane)) : word;
}
#endif

#if SAME || PIXELS
void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) {
#if SAME
    ivec4 words_a = a[REPEATED ? i % p.a_n : i], words_b = b[REPEATED ? i % p.b_n : i];
#else
    uvec4 y_size = uvec4(p.y_n, p.y_c, p.y_h, p.y_w), a_size = uvec4(p.a_n, p.a_c, p.a_h, p.a_w);
    uvec4 b_size = uvec4(p.b_n, p.b_c, p.b_h, p.b_w);
    Pixels at = ONE_PIXEL ? image_of(i, y_size) : pixels_of(i, y_size);
    ivec4 words_a = ONE_PIXEL ? a[i] : spread(a[place(at, a_size)], a_size, y_size);
#if BLOCKED
    ivec4 words_b = GATE ? gate_at(at, b_size) : spread(b[place(at, b_size)], b_size, y_size);
#else
    ivec4 words_b = spread(b[place(at, b_size)], b_size, y_size);
#endif
#endif
    y[i] = combine_vector(words_a, words_b);
  }
}
#else
void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) {
    uvec4 y_dims = uvec4(p.y_n, p.y_c, p.y_h, p.y_w), a_dims = uvec4(p.a_n, p.a_c, p.a_h, p.a_w);
    uvec4 b_dims = uvec4(p.b_n, p.b_c, p.b_h, p.b_w), extent = extent_of(y_dims);
    // lanes of padding repeat the last element
    uvec4 e = min(any_layout_element(LAYOUT, i, 0u, extent), extent - 1u);
    if (FOLDED) e = from_row_major(row_major(e, extent), y_dims);
    uvec2 at_a = place(e, a_dims), at_b = place(e, b_dims);
    bool one_a = LANE_AXIS == 1u ? p.a_c == 1u : p.a_w == 1u;
    bool one_b = LANE_AXIS == 1u ? p.b_c == 1u : p.b_w == 1u;
    Int8x4 word_a = lanes(a[at_a.x], at_a.y, one_a), word_b = lanes(b[at_b.x], at_b.y, one_b);
    vec4 farthest = vec4(0.0);
    Int8x4 result = combine_word(word_a, word_b, farthest);
    if (undecided(farthest)) result = word_from_table(word_a, word_b);
    y[i] = result;
  }
}
#endif
