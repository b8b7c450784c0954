"""Products, quotients and roots of float32 values, rounded to nearest even, in steps that give the same bits
on every device (`vkq.numerics.steps`).

Operands and results are `flushed`. A subnormal product that rounds up to 2^-126 also becomes zero: for it,
devices that flush return either zero or 2^-126.
"""

from __future__ import annotations

import numpy as np

from .steps import HIDDEN, INFINITY, SIGN, Number, exact_product, flushed, magnitude, quick_sum

FRACTION, ONE = 0x7FFFFF, 0x3F800000
# A pair of floats stands for their sum. The second is at most half an ulp of the first.
Pair = tuple[Number, Number]


def add(a: Number, b: Number) -> Number:
    """Return a + b, rounded to nearest even."""
    return flushed(a + b)


def subtract(a: Number, b: Number) -> Number:
    """Return a - b, rounded to nearest even."""
    return flushed(a - b)


def multiply(a: Number, b: Number) -> Number:
    """Return a * b, rounded to nearest even."""
    product = a * b
    if not a.flushes:
        return product
    return (magnitude(product).u > HIDDEN).where(product, (a ^ b.u) & SIGN)


def inverse(d: Number) -> Number:
    """Return 1 / d for d in [2^-60, 2^60], with a relative error of about 2^-23 (three Newton steps)."""
    r = (d.of(0x7EF311C7, "u") - d.u).f
    for _ in range(3):
        r = r + r * (d.of(1.0) - d * r)
    return r


def pair_quotient(n: Pair, d: Pair) -> Pair:
    """Return n / d of two pairs. d is in [2^-60, 2^60], and |n| is in this range or 0."""
    r = inverse(d[0])
    q = n[0] * r
    product, lost = exact_product(q, d[0])
    return quick_sum(q, (((n[0] - product) - lost) + (n[1] - q * d[1])) * r)


def pair_root(a: Pair) -> Pair:
    """Return the square root of a pair that is 0 or in [2^-60, 2^60]."""
    guess = (a[0].of(0x5F375A86, "u") - (a[0].u >> 1)).f  # a first estimate of 1 / sqrt(a)
    for _ in range(3):
        # with this order of factors, the step is also finite for a = 0
        guess = guess * (a[0].of(1.5) - ((a[0] * 0.5) * guess) * guess)
    q = a[0] * guess
    product, lost = exact_product(q, q)
    return quick_sum(q, (((a[0] - product) - lost) + a[1]) * (guess * 0.5))


def divide(a: Number, b: Number) -> Number:
    """Return a / b, rounded to nearest even. The remainder corrects an approximate integer quotient of the
    significands."""
    x, y = magnitude(a).u, magnitude(b).u
    ma, mb = (x & FRACTION) | HIDDEN, (y & FRACTION) | HIDDEN
    less = ma < mb
    near = ((x & FRACTION) | ONE).f * inverse(((y & FRACTION) | ONE).f)  # from 0.5 to 2
    # q is in [2^23, 2^24) and differs from the exact quotient by at most 2.
    q = (near * less.where(2.0**24, 2.0**23)).as_int()
    rest = ((ma << 23) << less.where(1, 0, "u")).i - q * mb.i
    for _ in range(3):
        over, under = rest + rest > mb.i, rest + rest < -mb.i
        q = over.where(q + 1, under.where(q - 1, q))
        rest = over.where(rest - mb.i, under.where(rest + mb.i, rest))
    exponent = (x >> 23).i - (y >> 23).i + 127 - less.where(1, 0, "i")
    exponent = exponent + (q >> 24)
    q = (q >> 24).equals(1).where(q >> 1, q)
    bits = ((exponent - 1) << 23) + q
    found = (exponent < 1).where(0.0, (exponent > 254).where(np.inf, bits.f))
    found = x.equals(0).where(0.0, y.equals(0).where(np.inf, found))
    found = x.equals(INFINITY).where(np.inf, y.equals(INFINITY).where(0.0, found))
    wrong = (x.equals(0) & y.equals(0)) | (x.equals(INFINITY) & y.equals(INFINITY))
    wrong = wrong | (x > INFINITY) | (y > INFINITY)
    return wrong.where(np.nan, found ^ ((a.u ^ b.u) & SIGN))


def square_root(x: Number) -> Number:
    """Return the square root of x, rounded to nearest even; -0 for -0, and NaN for other negative numbers."""
    bits = x.u
    even = ((bits >> 23) & 1) ^ 1  # x = m * 4^k, m in [1, 4); m >= 2 if the biased exponent is even
    m = ((bits & FRACTION) | HIDDEN) << even
    value = ((bits & FRACTION) | (even << 23) + ONE).f
    guess = (value.of(0x5F375A86, "u") - (value.u >> 1)).f  # a first estimate of 1 / sqrt(m)
    for _ in range(3):
        guess = guess * (value.of(1.5) - (value * 0.5) * (guess * guess))
    q = (value * guess * 2.0**23).as_int()  # an estimate of sqrt(m) * 2^23; its error is at most 2
    rest = (m << 23).i - q * q
    for _ in range(3):
        over, under = rest > q, rest <= -q
        rest = over.where(rest - q - q - 1, under.where(rest + q + q - 1, rest))
        q = over.where(q + 1, under.where(q - 1, q))
    exponent = ((bits >> 23).i + 125 - even.i) >> 1
    found = ((exponent << 23) + q).f
    same = magnitude(x).u.equals(0) | bits.equals(INFINITY)
    wrong = (magnitude(x).u > INFINITY) | ((bits >= SIGN) & ~bits.equals(SIGN))
    return wrong.where(np.nan, same.where(x, found))
