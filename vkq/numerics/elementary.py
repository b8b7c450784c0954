"""Rounding, comparisons, conversions and simple activations, in steps that give the same bits on every
device."""

from __future__ import annotations

import numpy as np

from .rational import add, divide, multiply
from .steps import HIDDEN, INFINITY, MAGNITUDE, SIGN, Number, is_nan, magnitude, scaled

WHOLE = 0x4B000000  # the bits of 2^23: every float of this magnitude or more is an integer
LEAST_INFINITE = 0x477FF000  # the bits of 65520, the smallest float32 that becomes an infinite float16


def truncated(x: Number) -> Number:
    """Return x, rounded toward zero to an integer."""
    cut = (magnitude(x).as_int().as_float()) | (x.u & SIGN)
    return (magnitude(x).u < WHOLE).where(cut, x)


def floor(x: Number) -> Number:
    cut = truncated(x)
    return is_nan(x).where(x, (x < cut).where(cut - 1.0, cut))


def ceil(x: Number) -> Number:
    return -floor(-x)


def round_even(x: Number) -> Number:
    """Return x, rounded to the nearest integer, ties to even."""
    near = ((magnitude(x) + 8388608.0) - 8388608.0) | (x.u & SIGN)
    return (magnitude(x).u < WHOLE).where(near, x)


def sign(x: Number) -> Number:
    one = x.of(1.0) | (x.u & SIGN)
    return magnitude(x).u.equals(0).where(0.0, is_nan(x).where(x, one))


def order(x: Number) -> Number:
    """Return an int32 for each float; the integers compare as the floats do. Both zeros become 0."""
    return (x.u >= SIGN).where(x.of(0, "i") - magnitude(x).i, x.i)


def less(a: Number, b: Number) -> Number:
    return ~(is_nan(a) | is_nan(b)) & (order(a) < order(b))


def less_or_equal(a: Number, b: Number) -> Number:
    return ~(is_nan(a) | is_nan(b)) & (order(a) <= order(b))


def equal(a: Number, b: Number) -> Number:
    return ~(is_nan(a) | is_nan(b)) & order(a).equals(order(b))


def maximum(a: Number, b: Number) -> Number:
    """Return the larger of two floats; NaN if either is NaN. +0 is larger than -0."""
    first = (a.i ^ _folded(a)) > (b.i ^ _folded(b))
    return is_nan(a).where(a, is_nan(b).where(b, first.where(a, b)))


def minimum(a: Number, b: Number) -> Number:
    """Return the smaller of two floats; NaN if either is NaN. -0 is smaller than +0."""
    first = (a.i ^ _folded(a)) < (b.i ^ _folded(b))
    return is_nan(a).where(a, is_nan(b).where(b, first.where(a, b)))


def _folded(x: Number) -> Number:
    """Return a mask for the bits of a float. Floats compare as the int32 values (bits XOR mask) do."""
    return (x.i >> 31) & MAGNITUDE


def remainder(a: Number, b: Number) -> Number:
    """Return fmod(a, b): a - q * b, where q is a / b truncated toward zero. The result is exact. Each step
    computes 8 bits of q."""
    x, y = magnitude(a).u, magnitude(b).u
    bits = (x >> 23).i - (y >> 23).i
    rest, divisor = (x & 0x7FFFFF) | HIDDEN, (y & 0x7FFFFF) | HIDDEN
    rest = rest.modulo(divisor)
    for _ in range(32):
        now = (bits > 8).where(8, (bits < 0).where(0, bits))
        rest, bits = (rest << now.u).modulo(divisor), bits - now
    found = scaled(rest.i.as_float(), (y >> 23).i - 150) | (a.u & SIGN)
    found = (x < y).where(a, found)
    wrong = is_nan(a) | is_nan(b) | x.equals(INFINITY) | y.equals(0)
    return wrong.where(np.nan, found)


def softsign(x: Number) -> Number:
    """Return x / (1 + |x|)."""
    found = divide(x, add(magnitude(x), x.of(1.0)))
    return (magnitude(x).u.equals(INFINITY)).where(x.of(1.0) | (x.u & SIGN), found)


def clip(x: Number, low: Number, high: Number) -> Number:
    return minimum(maximum(x, low), high)


def hard_sigmoid(x: Number, alpha: float = 0.2, beta: float = 0.5) -> Number:
    return clip(add(multiply(x, x.of(alpha)), x.of(beta)), x.of(0.0), x.of(1.0))


def hard_swish(x: Number) -> Number:
    return multiply(x, hard_sigmoid(x, 1 / 6, 0.5))


def leaky_relu(x: Number, alpha: float = 0.01) -> Number:
    return prelu(x, x.of(alpha))


def prelu(x: Number, slope: Number) -> Number:
    return less(x, x.of(0.0)).where(multiply(x, slope), x)


def thresholded_relu(x: Number, alpha: float = 1.0) -> Number:
    return less(x.of(alpha), x).where(x, 0.0)


# ------------------------------------------------------------------------------------------------ conversions


def from_half(h: Number) -> Number:
    """Return a float16, given as its 16 bits, as float32."""
    if h.converts:
        return h.emit("lowhalf", "f", h)
    large = ((h & 0x7FFF) << 13) + (112 << 23)
    small = (large + (1 << 23)).f - 2.0**-14  # an exact difference: a subnormal float16 as float32
    found = (large < (113 << 23)).where(small.u, (large < (143 << 23)).where(large, large + (112 << 23)))
    return (found | ((h & 0x8000) << 16)).f


def to_half(x: Number) -> Number:
    """Return the 16 bits of the nearest float16, ties to even. Subnormal float16 results are not flushed."""
    x = x.unrounded or x
    if x.converts:
        return is_nan(x).where(0x7E00, x.emit("tohalves", "u", x, x.of(0.0)))
    a = magnitude(x)
    near = a.u - (112 << 23)
    large = (near + 0xFFF + ((near >> 13) & 1)) >> 13
    small = (a + 0.5).u - (126 << 23)  # the sum is rounded to a multiple of 2^-24
    found = (a.u < (113 << 23)).where(small, (a.u < 0x47800000).where(large, 0x7C00))
    return (a.u > INFINITY).where(0x7E00, found | ((x.u >> 16) & 0x8000))


def halved(x: Number) -> Number:
    """Return x rounded to float16, as float32. The steps avoid conversions to float16 and back, which
    NVIDIA's compiler removes."""
    a = magnitude(x)
    power = a.u & INFINITY
    # Adding this power of 2 rounds x to a multiple of the distance between the float16 values next to x.
    step = ((power < (113 << 23)).where(113 << 23, power) + (13 << 23)).f
    found = (a.u > INFINITY).where(a, (a.u < LEAST_INFINITE).where((a + step) - step, np.inf))
    found = found | (x.u & SIGN)
    found.unrounded = x
    return found


def from_halves(word: Number) -> list[Number]:
    """Return the two float16 values of a word as float32, the lower 16 bits first."""
    if word.converts:
        return [word.emit(half, "f", word) for half in ("lowhalf", "highhalf")]
    return [from_half((word >> shift) & 0xFFFF) for shift in (0, 16)]


def to_halves(low: Number, high: Number) -> Number:
    """Return two values, rounded to float16, as one word (`to_half`)."""
    if not low.converts:
        return to_half(low) | (to_half(high) << 16)
    low, high = low.unrounded or low, high.unrounded or high
    word = low.emit("tohalves", "u", low, high)
    word = is_nan(low).where((word & 0xFFFF0000) | 0x7E00, word)
    return is_nan(high).where((word & 0xFFFF) | 0x7E000000, word)


def from_int(v: Number) -> Number:
    """Return the float32 nearest to an int32, ties to even."""
    negative = v < 0
    size = negative.where(v.of(0) - v, v).u
    high, low = (size >> 12).i.as_float() * 4096.0, (size & 0xFFF).i.as_float()
    return (high + low) | negative.where(SIGN, 0, "u")


def to_int(x: Number) -> Number:
    """Return a float32 truncated toward zero, as int32. Values out of range saturate, and NaN gives 0."""
    inside = magnitude(x).u < 0x4F000000
    end = (x.u >= SIGN).where(-(2**31), 2**31 - 1, "i")
    found = inside.where(inside.where(x, 0.0).as_int(), end)
    return is_nan(x).where(0, found)
