// Finish an exact integer correlation by number-theoretic transforms: convert sums modulo one prime or two
// primes to integers.
//
// The modulus is the prime, or the product of the two primes. Sums are in [most - modulus + 1, most] with
// most >= 0, so a residue above `most` is a negative sum. With two primes, the sum is r0 + first_prime * ((r1
// - r0) / first_prime modulo the second prime), by the Chinese remainder theorem.
//
// Memory    z: uint32 [image][template][block row][block column][SIZE_H][SIZE_W] modulo the first prime; z1:
//           the same modulo the second prime. y: integers (integer_result.glslh). bias: low and high word for
//           each template.
// Threads   one invocation computes one sum.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const bool WIDE = false;
layout(constant_id = 2) const bool TWO = false;  // the sums are known modulo two primes

layout(set = 0, binding = 0) readonly buffer Z { uint z[]; };
layout(set = 0, binding = 1) readonly buffer Z1 { uint z1[]; };
layout(set = 0, binding = 2) readonly buffer Bias { ivec2 bias[]; };
layout(set = 0, binding = 3) buffer Y { uint y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "integer_result.glslh"
#include "modular.glslh"

void main() {
  uint id = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  uint at_w = id % p.ow, line = id / p.ow, at_h = line % p.oh, map = line / p.oh;
  uint t = map % p.templates, image = map / p.templates;
  if (image < p.images) {
    uint block_h = at_h / p.step_h, block_w = at_w / p.step_w;
    uint from = ((map * p.blocks_h + block_h) * p.blocks_w + block_w) * p.size_h + at_h - block_h * p.step_h;
    from = from * p.size_w + at_w - block_w * p.step_w;
    uvec4 low = uvec4(z[from]), high = uvec4(0u);
    if (TWO) {  // p.prime is the second and larger prime
      uint digit = multiply(subtract(z1[from], low.x), p.first_inverse), more_low, more_high;
      umulExtended(digit, p.first_prime, more_high, more_low);
      low = uvec4(low.x + more_low);
      high = uvec4(more_high + uint(low.x < more_low));
    }
    if (high.x > p.most_high || (high.x == p.most_high && low.x > p.most_low)) {
      high = uvec4(high.x - p.modulus_high - uint(low.x < p.modulus_low));
      low = uvec4(low.x - p.modulus_low);
    }
    uint channel = p.first_template + t;
    add_wide(low, high, uvec4(bias[channel].x), uvec4(bias[channel].y));
    uint place = place_of(image, channel, uvec2(at_w, at_h));
    if (place != OUTSIDE) store(place, low.x, high.x, false);
  }
}
