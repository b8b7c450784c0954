"""Powers of float32 values, in steps that give the same bits on every device. Errors are in ulp, which
atanh(f / (2 + f))."""

from __future__ import annotations

import numpy as np

from .exponential import LN2, clamped, exp_parts, pair_product, split_log
from .rational import Pair, multiply, pair_quotient
from .steps import (
    INFINITY,
    SIGN,
    Number,
    exact_product,
    exact_sum,
    is_nan,
    magnitude,
    polynomial,
    quick_sum,
    scaled,
)

THIRD = (0.3333333432674408, -9.934107758624577e-09)
REST = (1 / 13, 1 / 11, 1 / 9, 1 / 7, 0.2)  # atanh(s) = s + s^3 (1 / 3 + s^2 / 5 + s^4 / 7 ...)
LN2_MORE = (-2.12194440e-4, 1.6465949582897082e-12)  # log(2) - LN2[0] as a pair of floats


def power(x: Number, y: Number) -> Number:
    """Return x^y as C's pow does, within 0.9 ulp; squares are correctly rounded. For finite negative x, the
    result is NaN unless y is an integer. 1^NaN and NaN^0 are 1."""
    size = magnitude(x)
    high, low = _log(size)
    product, lost = exact_product(y, high)
    near = magnitude(product) < 150.0
    s, t, n = exp_parts(clamped(product, -150.0, 150.0), near.where(lost + y * low, 0.0))
    found = scaled(s + t, n)
    found = (size.u.equals(0) | size.u.equals(INFINITY)).where(_end(size, y), found)
    one = size.u.equals(0x3F800000)
    found = (magnitude(y).u.equals(INFINITY)).where(_endless(size, y), one.where(1.0, found))
    whole, odd = _parity(y)
    negative = x.u >= SIGN
    found = found ^ (negative & odd).where(SIGN, 0, "u")
    found = (negative & ~whole & ~size.u.equals(0) & ~size.u.equals(INFINITY)).where(np.nan, found)
    found = (is_nan(x) | is_nan(y)).where(np.nan, found)
    found = y.equals(2.0).where(multiply(x, x), found)
    return (magnitude(y).u.equals(0) | x.u.equals(0x3F800000)).where(1.0, found)


def _log(x: Number) -> Pair:
    """Return log(x) as a pair with a relative error of at most 2^-38. With x = 2^k (1 + f), log(1 + f) is"""
    k, f = split_log(x)
    s = pair_quotient((f, f.of(0.0)), exact_sum(f.of(2.0), f))
    square = pair_product(s, s)
    high, low = quick_sum(x.of(THIRD[0]), square[0] * polynomial(square[0], *REST))
    inner = pair_product(square, (high, low + THIRD[1]))
    twice = s[0] + s[0], s[1] + s[1]
    more = pair_product(twice, inner)
    high, low = quick_sum(twice[0], more[0])
    logarithm = quick_sum(high, low + (twice[1] + more[1]))
    n = k.as_float()
    product, lost = exact_product(n, x.of(LN2_MORE[0]))
    high, low = exact_sum(product, logarithm[0])
    second = quick_sum(high, low + (lost + n * LN2_MORE[1] + logarithm[1]))
    high, low = exact_sum(n * LN2[0], second[0])
    return quick_sum(high, low + second[1])


def _end(size: Number, y: Number) -> Number:
    """Return size^y for a size that is 0 or infinite, and a finite y."""
    up = size.u.equals(0) ^ (y.u < SIGN)
    return up.where(np.inf, 0.0)


def _endless(size: Number, y: Number) -> Number:
    """Return size^y for an infinite y."""
    up = (size.u > 0x3F800000) ^ (y.u >= SIGN)
    return size.u.equals(0x3F800000).where(1.0, up.where(np.inf, 0.0))


def _parity(y: Number) -> tuple[Number, Number]:
    """Return (whether y is an integer, whether y is an odd integer)."""
    large = magnitude(y).u >= 0x4B800000  # every float of at least 2^24 in magnitude is an even integer
    cut = large.where(0.0, y).as_int()
    whole = large | cut.as_float().equals(large.where(0.0, y)) | magnitude(y).u.equals(0)
    return whole, whole & ~large & (cut & 1).equals(1)
