// Compute the scale and zero point of every row from its own values, and convert the row to int8: ONNX
// DynamicQuantizeLinear applied to rows, with int8 results.
//   scale = (max(0, row) - min(0, row)) / 255, at least 2^-126; 1 for a row of zeros
//   zero_point = saturate(-128 + round_half_even(-min(0, row) / scale))
//   q = saturate(round_half_even(x / scale) + zero_point)
// min and max are over the finite values; infinities saturate, NaN becomes -128. With INFINITIES, as in ONNX,
// min and max include infinities. If the range then exceeds float32, the scale is infinity: numbers become
// the zero point (-128, or 127 if the minimum is -infinity), and infinities become -128. All arithmetic is in
// integers (exact_float.glslh).
//
// Memory    x: float32 rows [m][k], read as bits; y: Int8x4 words in kPackedInt8_4H4W, or (BLOCKED)
//           kPackedInt8_16C; padding beyond k holds the row's zero point; rows: [m] = (bits of the scale,
//           zero point), int32.
// Threads   ALL: one workgroup of LOCAL_X (a power of two) invocations converts a row. Otherwise a workgroup
//           processes a piece of a row (a multiple of 16 elements): a first dispatch finds the bounds of all
//           pieces (BOUNDS), a second dispatch converts the pieces.
// Needs     8 bytes of shared memory for each invocation.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const bool BLOCKED = false;
layout(constant_id = 2) const bool INFINITIES = false;
layout(constant_id = 3) const uint PASS = 0;
#define ALL 0u
#define BOUNDS 1u

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };
layout(set = 0, binding = 2) writeonly buffer Rows { ivec2 rows[]; };
layout(set = 0, binding = 3) buffer Bounds { uvec2 bounds[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint m, k, parts, piece;
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "exact_float.glslh"
#include "layout/kPackedInt8_16C.glslh"
#include "layout/kPackedInt8_4H4W.glslh"

// bits of 1.0, 2^-126 and 255.0
const uint ONE = 0x3f800000u, SMALLEST_SCALE = 0x00800000u, STEPS = 0x437f0000u;

// Compare magnitudes as integers: non-negative floats and their bit patterns have the same order.
shared uint below[LOCAL_X];
shared uint above[LOCAL_X];

// Find the largest magnitudes below and above zero in the row, or in one piece of it, and write them to
// below[0] and above[0].
void find_bounds(uint row, uint part) {
  uint at = gl_LocalInvocationID.x, low = 0u, high = 0u;
  if (PASS > BOUNDS) {
    for (uint i = at; i < p.parts; i += LOCAL_X) {
      low = max(low, bounds[row * p.parts + i].x);
      high = max(high, bounds[row * p.parts + i].y);
    }
  } else {
    for (uint i = part * p.piece + at; i < min((part + 1u) * p.piece, p.k); i += LOCAL_X) {
      uint bits = x[row * p.k + i], magnitude = bits & 0x7fffffffu;
      if (magnitude > FLOAT_INFINITY || (magnitude == FLOAT_INFINITY && !INFINITIES)) continue;
      if (bits == magnitude) high = max(high, magnitude);
      else low = max(low, magnitude);
    }
  }
  below[at] = low;
  above[at] = high;
  barrier();
  for (uint left = LOCAL_X / 2u; left > 0u; left /= 2u) {
    if (at < left) {
      below[at] = max(below[at], below[at + left]);
      above[at] = max(above[at], above[at + left]);
    }
    barrier();
  }
}

uint half_of(uint bits) { return bits < 2u * FLOAT_HIDDEN ? 0u : bits - FLOAT_HIDDEN; }

// Return true if the range exceeds float32. The check uses half the range, which float32 can always
// represent.
bool beyond() {
  uint largest = max(below[0], above[0]);
  return largest == FLOAT_INFINITY ||
         add_magnitudes(half_of(below[0]), half_of(above[0])) >= half_of(FLOAT_INFINITY);
}

int quantized(uint bits, uint scale, int zero_point) {
  if (scale == FLOAT_INFINITY) return (bits & 0x7fffffffu) < FLOAT_INFINITY ? zero_point : -128;
  return clamp(quantized_quotient(bits, scale) + zero_point, -128, 127);
}

uint word(uint row, uint k) {
  if (BLOCKED) return kPackedInt8_16C_word(uvec4(row, k, 0u, 0u), uvec4(p.m, p.k, 1u, 1u));
  return kPackedInt8_4H4W_word(uvec4(0u, 0u, row, k), uvec4(1u, 1u, p.m, p.k));
}

void store(uint row, uint part, uint scale, int zero_point) {
  uint words = BLOCKED ? 4u * ceil_div(p.k, 16u) : ceil_div(p.k, 4u), first = part * (p.piece / 4u);
  for (uint i = first + gl_LocalInvocationID.x; i < min(first + p.piece / 4u, words); i += LOCAL_X) {
    ivec4 q = ivec4(zero_point);
    [[unroll]] for (uint lane = 0u; lane < 4u; lane++)
      if (4u * i + lane < p.k)
        q[lane] = quantized(x[row * p.k + 4u * i + lane], scale, zero_point);
    y[word(row, 4u * i)] = int8x4_pack(q);
  }
}

void main() {
  uint index = workgroup_index(), row = index / p.parts, part = index - row * p.parts;
  find_bounds(row, part);
  uint range = add_magnitudes(below[0], above[0]);
  uint scale = range == 0u ? ONE : max(divide(range, STEPS), SMALLEST_SCALE);
  int zero_point = clamp(quantized_quotient(below[0], scale) - 128, -128, 127);
  if (INFINITIES && beyond()) {
    scale = FLOAT_INFINITY;
    zero_point = below[0] == FLOAT_INFINITY ? 127 : -128;
  }
  if (PASS == BOUNDS) {
    if (gl_LocalInvocationID.x == 0u) bounds[index] = uvec2(below[0], above[0]);
  } else {
    if (gl_LocalInvocationID.x == 0u && part == 0u) rows[row] = ivec2(int(scale), zero_point);
    store(row, part, scale, zero_point);
  }
}
