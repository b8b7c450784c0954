// Replacement of float_numbers.glslh without 16-bit storage: a 32-bit word holds two float16 elements.
#define FLOAT_NUMBERS_GLSLH
#define Number uint
#define Stored uint
#define StoredFour uvec2
#define shift_of(at) (16u * ((at) % 2u))
#define stored_at(array, at) (array[(at) / 2u] >> shift_of(at) & 0xffffu)
#define float_of(stored) unpackHalf2x16(stored).x
vec4 floats_of(uvec2 four) { return vec4(unpackHalf2x16(four.x), unpackHalf2x16(four.y)); }
vec4 floats_of(uvec4 one) { return floats_of(one.xz | one.yw << 16); }
#define store_number(array, at, value)                               \
  {                                                                  \
    atomicAnd(array[(at) / 2u], ~(0xffffu << shift_of(at)));         \
    atomicOr(array[(at) / 2u], float16_bits(value) << shift_of(at)); \
  }
