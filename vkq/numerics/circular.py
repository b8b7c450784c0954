"""Sine, cosine and tangent of any float32 value, in steps that give the same bits on every device. Errors
are in ulp, which `vkq.numerics.exponential` defines.

The argument is divided by pi / 2 in integers: its 24-bit significand is multiplied by the bits of 2 / pi
that matter for its exponent.
"""

from __future__ import annotations

import itertools

import numpy as np

from .rational import FRACTION, Pair, pair_quotient
from .steps import HIDDEN, INFINITY, SIGN, Number, exact_product, magnitude, polynomial, quick_sum

# a word of zeros, then the first 224 bits of 2 / pi
WORDS = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
HALF_PI = (1.5707963705062866, -4.371138828673793e-08)
# Polynomials in r^2 for r^2 in [0, 0.62]. SINE: (sin(r) / r - 1) / r^2. COSINE: (cos(r) - 1 + r^2 / 2) / r^4.
SINE = (2.7248364773036666e-06, -0.00019840074665737465, 0.008333331852310973, -0.16666666663797544)
COSINE = (-2.7299656316022867e-07, 2.4800590303711416e-05, -0.0013888887653322967, 0.04166666666427301)

# Polynomial in h^2 for (tan(h) / h - 1) / h^2, for h^2 in [0, 0.1545].
TANGENT = (
    0.010404745550780022, 0.021654184893895752, 0.053980308718833664, 0.13333309898555729,
    0.33333333405837595,
)  # fmt: skip


def sine(x: Number) -> Number:
    """Return sin(x), within 0.94 ulp; NaN if x is infinite."""
    quarter, r = _reduced(x)
    return _finished(x, quarter, r, x.u & SIGN)


def cosine(x: Number) -> Number:
    """Return cos(x), within 0.94 ulp; NaN if x is infinite."""
    quarter, r = _reduced(x)
    return _finished(x, quarter + 1, r, x.of(0, "u"))


def tangent(x: Number) -> Number:
    """Return tan(x), within 0.88 ulp; NaN if x is infinite.

    x is reduced to r in [-pi / 4, pi / 4] (`_reduced`). With t = tan(r / 2), the result is 2 t / (1 - t^2) in
    even quarters of a turn, and -(1 - t^2) / (2 t) in odd ones."""
    quarter, r = _reduced(x)
    below = (r[0].u & SIGN) ^ (quarter & 1).u << 31
    h = magnitude(r[0]) * 0.5, (r[1] ^ (r[0].u & SIGN)) * 0.5
    square = h[0] * h[0]
    t = quick_sum(h[0], h[1] + (h[0] * square) * polynomial(square, *TANGENT))
    square, lost = exact_product(t[0], t[0])
    one, rest = quick_sum(x.of(1.0), -square)
    twice = t[0] + t[0], t[1] + t[1]
    whole = quick_sum(one, rest - (lost + twice[0] * t[1]))
    odd = (quarter & 1).equals(1)
    n = odd.where(whole[0], twice[0]), odd.where(whole[1], twice[1])
    d = odd.where(twice[0], whole[0]), odd.where(twice[1], whole[1])
    high, low = pair_quotient(n, d)
    found = (magnitude(x) < 2.0**-30).where(x, (high + low) ^ (below ^ (x.u & SIGN)))
    return (magnitude(x).u >= INFINITY).where(np.nan, found)


def _finished(x: Number, quarter: Number, r: Pair, sign: Number) -> Number:
    """Return sin(r + quarter * pi / 2). *sign*: `SIGN` to negate the result, else 0."""
    square, lost = exact_product(r[0], r[0])
    small = magnitude(r[0]) < 2.0**-30
    straight = r[0] + (r[1] + (r[0] * square) * polynomial(square, *SINE))
    one, rest = quick_sum(x.of(1.0), square * -0.5)
    tail = square * square * polynomial(square, *COSINE)
    upright = one + (rest + (tail - (lost * 0.5 + r[0] * r[1])))
    odd = (quarter & 1).equals(1)
    found = odd.where(small.where(1.0, upright), small.where(r[0], straight))
    found = found ^ (sign ^ (quarter & 2).u << 30)
    return (magnitude(x).u >= INFINITY).where(np.nan, found)


def _reduced(x: Number) -> tuple[Number, Pair]:
    """Return (k, r) with |x| = r + k * pi / 2 modulo 2 pi. r is a pair in [-pi / 4, pi / 4]."""
    exponent = (x.u >> 23) & 255
    # Let m be the significand of x, and 0.WORDS the binary fraction with the bits of WORDS. Then
    #     |x| * 2 / pi = m * 2^(exponent - 150) * 2^32 * 0.WORDS.
    # Bits of 2 / pi that add only whole turns are skipped.
    skip = (exponent < 120).where(0, exponent - 120)
    parts = [_word(skip >> 5, i) for i in range(4)]
    shift = skip & 31
    a, b, c = (
        shift.equals(0).where(high, (high << shift) | (low >> ((32 - shift) & 31)))
        for high, low in itertools.pairwise(parts)
    )
    m = (x.u & FRACTION) | HIDDEN
    # a, b and c are the words of a 96-bit integer. m * (a, b, c) modulo 2^96 is |x| * (2 / pi) * 2^94 without
    # whole turns. Only its upper 64 bits are computed.
    low = b * m
    mid = low + c.high(m)
    high = a * m + b.high(m) + (mid < low).where(1, 0, "u")
    quarter = high >> 30
    high, mid = (high << 2) | (mid >> 30), mid << 2
    up = high >= SIGN  # r is above pi / 4: go to the next quarter, in which r is negative
    negative = up.where(SIGN, 0, "u")
    flip = up.where(2**32 - 1, 0, "u")
    high, mid = high ^ flip, mid ^ flip
    quarter = (quarter + up.where(1, 0, "u")).i
    f = [(high >> 16, 2.0**-16), (high & 0xFFFF, 2.0**-32), (mid >> 16, 2.0**-48), (mid & 0xFFFF, 2.0**-64)]
    values = [word.i.as_float() * unit for word, unit in f]
    total, lost = quick_sum(values[0], values[1])
    total, lost = quick_sum(total, lost + (values[2] + values[3]))
    product, rest = exact_product(total, x.of(HALF_PI[0]))
    r = quick_sum(product, rest + (total * HALF_PI[1] + lost * HALF_PI[0]))
    # For |x| below pi / 4, r is |x|, so that small values keep all their bits.
    own = magnitude(x) < 0.78539816
    quarter = own.where(0, quarter)
    return quarter, (own.where(magnitude(x), r[0] ^ negative), own.where(0.0, r[1] ^ negative))


def _word(index: Number, offset: int) -> Number:
    """Return WORDS[index + offset]; 0 beyond the last word."""
    found = index.of(0)
    for i in range(offset, min(offset + 5, len(WORDS))):
        found = index.equals(i - offset).where(WORDS[i], found)
    return found
