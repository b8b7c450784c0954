"""Float32 sums and products computed with integers, for devices that do not round floats to nearest even."""

from __future__ import annotations

import numpy as np

from .steps import HIDDEN, INFINITY, SIGN, Number, is_nan, magnitude

FRACTION = 0x7FFFFF


def _composed(sign: Number, exponent: Number, significand: Number, rest: Number) -> Number:
    """Return significand * 2^(exponent - 150), rounded to nearest even; 0 below the normal range.

    The significand is in (0, 2^31). *rest*: whether nonzero bits below the significand were cut off; the
    significand then has at least 26 bits.
    """
    lead = _bits(significand) - 24
    right = (lead < 0).where(0, lead)
    left = (lead < 0).where(lead.of(0) - lead, 0)
    cut = significand & ((significand.of(1) << right.u) - 1)
    half = (significand.of(1) << right.u) >> 1
    kept = (significand >> right.u) << left.u
    up = (right > 0) & ((cut > half) | (cut.equals(half) & (rest | (kept & 1).equals(1))))
    kept = kept + up.where(1, 0, "u")
    exponent = exponent + lead + (kept >> 24).i
    kept = (kept >> 24).equals(1).where(kept >> 1, kept)
    bits = ((exponent.u - 1) << 23) + kept
    found = (exponent < 1).where(0, (exponent > 254).where(INFINITY, bits))
    return (found | sign).f


def _bits(v: Number) -> Number:
    """Return the number of bits of a uint32 without leading zeros, as int32."""
    count = v.of(0, "i")
    for step in (16, 8, 4, 2, 1):
        large = v >= (1 << step)
        count, v = large.where(count + step, count), large.where(v >> step, v)
    return count + v.i


def soft_sum(a: Number, b: Number) -> Number:
    """Return a + b, rounded to nearest even."""
    swap = magnitude(a).u < magnitude(b).u
    large, small = swap.where(b, a).u, swap.where(a, b).u
    apart = ((large >> 23) & 255) - ((small >> 23) & 255)
    apart = (apart > 30).where(30, apart)
    m, other = ((large & FRACTION) | HIDDEN) << 6, ((small & FRACTION) | HIDDEN) << 6
    rest = ~(other & ((other.of(1) << apart) - 1)).equals(0)
    opposite = (large ^ small) >= SIGN
    other = other >> apart
    total = opposite.where(m - other - rest.where(1, 0, "u"), m + other)
    found = _composed(large & SIGN, ((large >> 23) & 255).i - 6, total, rest)
    found = total.equals(0).where(0.0, found)
    zero = (small << 1) < (HIDDEN << 1)
    found = zero.where(large.f, found)
    found = (zero & ((large << 1) < (HIDDEN << 1))).where((a.u & b.u & SIGN).f, found)
    endless = (large & INFINITY).equals(INFINITY)
    wrong = is_nan(a) | is_nan(b) | (endless & opposite & (small & INFINITY).equals(INFINITY))
    return wrong.where(np.nan, endless.where(large.f, found))


def soft_product(a: Number, b: Number) -> Number:
    """Return a * b, rounded to nearest even."""
    x, y, sign = magnitude(a).u, magnitude(b).u, (a.u ^ b.u) & SIGN
    ma, mb = ((x & FRACTION) | HIDDEN) << 3, ((y & FRACTION) | HIDDEN) << 3
    high, low = ma.high(mb), ma * mb  # *high* has 21 or 22 bits
    top = (high << 7) | (low >> 25)
    rest = ~(low << 7).equals(0)
    exponent = (x >> 23).i + (y >> 23).i - 131
    found = _composed(sign, exponent, top, rest)
    nothing, endless = (x < HIDDEN) | (y < HIDDEN), (x >= INFINITY) | (y >= INFINITY)
    found = nothing.where(sign.f, endless.where((sign | INFINITY).f, found))
    return (is_nan(a) | is_nan(b) | (nothing & endless)).where(np.nan, found)


def soft_difference(a: Number, b: Number) -> Number:
    """Return a - b, rounded to nearest even."""
    return soft_sum(a, -b)
