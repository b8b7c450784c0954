// y = c ? a : b. The condition c has uint8 numbers 0 or 1, stored as int8 -128 or -127.
//
// Memory    BYTES: a, b, c, y: Int8x4 words in the same layout. Otherwise: a, b, y: 32-bit numbers,
//           row-major; c: int8 in layout number LAYOUT.
// Threads   one invocation writes one word (BYTES) or one number.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const int LAYOUT = 0;  // layout of c, if a, b and y are 32-bit numbers
layout(constant_id = 2) const bool A_ONE = false;  // a has one element, which broadcasts
layout(constant_id = 3) const bool B_ONE = false;

layout(set = 0, binding = 0) readonly buffer C { int c[]; };
layout(set = 0, binding = 1) readonly buffer A { int a[]; };
layout(set = 0, binding = 2) readonly buffer B { int b[]; };
layout(set = 0, binding = 3) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;              // number of words (BYTES) or numbers of y
  uint c_n, c_c, c_h, c_w; // shape of c
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "row_major.glslh"
#include "layout/any.glslh"

#if BYTES
int repeated(int word) { return int8x4_broadcast(int8x4_lane(word, 0u)); }
#else
int repeated(int number) { return number; }
#endif

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) {
    int yes = A_ONE ? repeated(a[0]) : a[i], no = B_ONE ? repeated(b[0]) : b[i];
#if BYTES
    int mask = (c[i] & 0x01010101) * 255;
    y[i] = (yes & mask) | (no & ~mask);
#else
    uvec4 extent = uvec4(p.c_n, p.c_c, p.c_h, p.c_w), e = from_row_major(i, extent);
    int flag = int8x4_lane(c[any_layout_word(LAYOUT, e, extent)], any_layout_lane(LAYOUT, e));
    y[i] = (flag & 1) == 1 ? yes : no;
#endif
  }
}
