"""The exponential, the logarithm, and functions of them, in steps that give the same bits on every device.

Each function states its largest error in ulp. One ulp (unit in the last place) is the distance between the
two float32 values nearest to the exact result; correct rounding has an error of 0.5 ulp. Tests measure the
errors.
"""

from __future__ import annotations

import numpy as np

from .rational import FRACTION, ONE, Pair, divide, inverse, multiply, pair_quotient
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

# EXP, LOG and TANH are Chebyshev fits by mpmath.chebyfit of the functions in the comments.
# (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2
EXP = (1.9891970e-4, 1.3934532e-3, 8.3333100e-3, 4.1666457e-2, 1.6666667e-1, 0.5)
# (log(1 + f) - f + f^2 / 2) / f^3 for f on [sqrt(1/2) - 1, sqrt(2) - 1]
LOG = (
    0.05555094556064493, -0.09727659389760898, 0.09804564386097082, -0.09931553137948022,
    0.11048250377157395, -0.12499927717186018, 0.14287886099982502, -0.1666671980607466,
    0.19999973727896375, -0.249999994987083, 0.33333333384803754,
)  # fmt: skip
# (tanh(x) / x - 1) / x^2 as a polynomial in x^2, for x^2 in [0, 0.25]
TANH = (
    0.002679742569846649, -0.008621821062099357, 0.02183908027392791, -0.05396649878175882,
    0.1333332959940025, -0.33333333320386505,
)  # fmt: skip
LN2 = (0.693359375, -2.12194440e-4)  # log(2) as a sum of two floats; LN2[0] has 9 significant bits
ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2)


def clamped(x: Number, low: float, high: float) -> Number:
    return (x < low).where(low, (x > high).where(high, x))


def exp_parts(x: Number, more: Number | None = None) -> tuple[Number, Number, Number]:
    """Return (s, t, n) with exp(x + more) = (s + t) * 2^n, for |x| <= 200. *more*: the low part of the
    argument (None: 0). s is in [0.7, 1.42], and the relative error of s + t is at most 2^-29."""
    n = (x * 1.4426950408889634 + 12582912.0) - 12582912.0  # x / log(2), rounded to the nearest integer
    high, low = x - n * LN2[0], n * -LN2[1]
    low = low if more is None else low + more
    r = high + low
    s = high + 1.0
    t = (high - (s - 1.0)) + (low + r * r * polynomial(r, *EXP))
    return *quick_sum(s, t), n.as_int()


def exp(x: Number) -> Number:
    """Return e^x, within 0.75 ulp."""
    s, t, n = exp_parts(clamped(x, -110.0, 100.0))
    return is_nan(x).where(x, scaled(s + t, n))


def exp_minus_1(x: Number, more: Number | None = None) -> Pair:
    """Return e^(x + more) - 1 as a pair of floats, for x in [-110, 0]. *more*: the low part of the
    argument."""
    s, t, n = exp_parts(x, more)
    power = ((n < -60).where(-60, n) + 127 << 23).f
    total, lost = exact_sum(s * power, x.of(-1.0))
    return quick_sum(total, lost + t * power)


def log_parts(k: Number, f: Number) -> Pair:
    """Return k * log(2) + log(1 + f) as a pair of floats. f is in [sqrt(1/2) - 1, sqrt(2) - 1], and k is an
    int32."""
    square, lost = exact_product(f, f)
    total, rest = quick_sum(f, square * -0.5)
    tail = (f * square) * polynomial(f, *LOG) + (rest - lost * 0.5)
    n = k.as_float()
    high, low = exact_sum(n * LN2[0], total)
    return quick_sum(high, low + (n * LN2[1] + tail))


def split_log(x: Number) -> tuple[Number, Number]:
    """Return (k, f) with x = 2^k (1 + f) and 1 + f in [sqrt(1/2), sqrt(2)). x must be positive and normal."""
    k = (x.u - ROOT_HALF).i >> 23
    return k, (x.u - (k << 23).u).f - 1.0


def log(x: Number) -> Number:
    """Return the natural logarithm, within 0.75 ulp; -inf if x is 0, NaN if x is negative."""
    high, low = log_parts(*split_log(x))
    found = x.u.equals(INFINITY).where(x, high + low)
    found = magnitude(x).u.equals(0).where(-np.inf, found)
    wrong = is_nan(x) | ((x.u >= SIGN) & ~x.u.equals(SIGN))
    return wrong.where(np.nan, found)


def log_of_pair(a: Pair, more: Number) -> Pair:
    """Return log(a) + more * log(2) as a pair. *a*: a normal pair that is 1 or differs from 1 by at least
    2^-12. *more*: an int32."""
    k, f = split_log(a[0])
    high, low = log_parts(k + more, f)
    rest = scaled(a[1], k.of(0) - k)
    return quick_sum(high, low + rest * inverse(f + 1.0))


def log_1_plus(a: Pair) -> Pair:
    """Return log(1 + a) as a pair, for a pair *a* in [0, 1]."""
    large = a[0] > 0.41421356
    half, low = exact_sum(a[0] * 0.5, a[0].of(-0.5))
    f, more = quick_sum(large.where(half, a[0]), large.where(low + a[1] * 0.5, a[1]))
    high, low = log_parts(large.where(1, 0, "i"), f)
    return quick_sum(high, low + more * inverse(f + 1.0))


def power_of_2(n: Number) -> Number:
    """Return 2^n for an int32 n up to 120; 2^-60 for n below -60."""
    return ((n < -60).where(-60, n) + 127 << 23).f


def decay(x: Number, more: Number | None = None) -> tuple[Pair, Number, Pair]:
    """Return exp(-|x + more|) in two forms, as ((s, t), n, pair). *more*: the low part of the argument. The
    first form is (s + t) * 2^n with n <= 0. The second form, the pair, is (s * 2^n, t * 2^n) with n clamped
    to at least -60."""
    negative = x < 0.0
    if more is not None:
        more = (magnitude(x) < 110.0).where(negative.where(more, -more), 0.0)
    s, t, n = exp_parts(clamped(-magnitude(x), -110.0, 0.0), more)
    p = power_of_2(n)
    return (s, t), n, (s * p, t * p)


def logistic(x: Number, more: Number | None = None) -> tuple[Pair, Number]:
    """Return (q, n) with q * 2^n = logistic(x + more), where logistic(v) = 1 / (1 + exp(-v)). *more*: the
    low part of the argument. q is a pair in [0.35, 1.42]."""
    (s, t), n, a = decay(x, more)
    below = x < 0.0
    high, low = exact_sum(x.of(1.0), a[0])
    q = pair_quotient((below.where(s, 1.0), below.where(t, 0.0)), quick_sum(high, low + a[1]))
    return q, below.where(n, 0)


def times(x: Number, q: Pair, n: Number) -> Number:
    """Return x * q * 2^n, for n <= 0, |x| in [2^-126, 2^126] and q in [2^-30, 2]."""
    m = ((x.u & (FRACTION | SIGN)) | ONE).f
    high, low = exact_product(m, q[0])
    return scaled(high + (low + m * q[1]), n + (magnitude(x).u >> 23).i - 127)


def gated(x: Number, q: Pair, n: Number) -> Number:
    """Return x * q * 2^n (`times`), also for zero, infinite and NaN x. The result is a zero if x is -inf or
    n is below -150."""
    found = (n < -150).where(-0.0, times(x, q, n))
    large = (magnitude(x).u >= INFINITY) & ~x.u.equals(SIGN | INFINITY)
    return (large | magnitude(x).u.equals(0)).where(x, found)


def sigmoid(x: Number) -> Number:
    """Return 1 / (1 + e^-x), within 0.75 ulp."""
    q, n = logistic(x)
    return is_nan(x).where(x, scaled(q[0] + q[1], n))


def swish(x: Number, alpha: float = 1.0) -> Number:
    """Return x / (1 + e^(-alpha x)), within 0.75 ulp."""
    q, n = logistic(*exact_product(clamped(x, -(2.0**100), 2.0**100), x.of(alpha)))
    return gated(x, q, n)


def tanh(x: Number) -> Number:
    """Return tanh(x), within 0.75 ulp. Near zero it is x + x^3 P(x^2). Elsewhere it is (1 - a) / (1 + a) with
    a = e^(-2 |x|), and has the sign of x."""
    square = x * x
    near = x + x * square * polynomial(square, *TANH)
    _, _, a = decay(clamped(x, -60.0, 60.0) * 2.0)
    up, down = exact_sum(x.of(1.0), -a[0]), exact_sum(x.of(1.0), a[0])
    q = pair_quotient(quick_sum(up[0], up[1] - a[1]), quick_sum(down[0], down[1] + a[1]))
    found = (magnitude(x) < 0.5).where(near, q[0] + q[1])
    return is_nan(x).where(x, found | (x.u & SIGN))


def softplus(x: Number) -> Number:
    """Return log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), within 0.75 ulp."""
    (s, t), n, a = decay(x)
    log = log_1_plus(quick_sum(*a))
    high, low = exact_sum((x < 0.0).where(0.0, x), log[0])
    found = (x < -40.0).where(scaled(s + t, n), high + (low + log[1]))
    large = magnitude(x).u >= INFINITY
    return large.where(x.u.equals(SIGN | INFINITY).where(0.0, x), found)


def pair_product(a: Pair, b: Pair) -> Pair:
    product, lost = exact_product(a[0], b[0])
    return quick_sum(product, lost + (a[0] * b[1] + a[1] * b[0]))


def _plus(number: float, a: Pair) -> Pair:
    high, low = exact_sum(a[0].of(number), a[0])
    return quick_sum(high, low + a[1])


def _either(condition: Number, a: Pair, b: Pair) -> Pair:
    return condition.where(a[0], b[0]), condition.where(a[1], b[1])


def mish(x: Number) -> Number:
    """Return x tanh(softplus(x)), within 0.75 ulp. It is x w / (w + 2) with w = e^x (e^x + 2)."""
    raw, n, a = decay(x)
    below = x < 0.0
    twice = a[0] + a[0], a[1] + a[1]
    # a is e^-|x|. For x < 0, the quotient is w / (w + 2). Otherwise numerator and denominator are divided
    # by e^2x.
    sum_, line = _plus(2.0, a), _plus(1.0, twice)
    square = pair_product(a, twice)
    high, low = exact_sum(line[0], square[0])
    over = quick_sum(high, low + (line[1] + square[1]))
    q = pair_quotient(
        _either(below, pair_product(raw, sum_), line),
        _either(below, _plus(2.0, pair_product(a, sum_)), over),
    )
    return gated(x, q, below.where(n, 0))


def _bent(x: Number, argument: Number, more: Number | None, factor: float, slope: float) -> Number:
    """Return x if x > 0, else factor * (e^(argument + more) - 1), or slope * x if *argument* is near 0."""
    high, low = exp_minus_1(clamped(argument, -110.0, 0.0), more)
    product, lost = exact_product(high, x.of(factor))
    found = product + (lost + low * factor)
    found = (magnitude(argument) < 2.0**-24).where(multiply(x, x.of(slope)), found)
    return (is_nan(x) | (x > 0.0)).where(x, found)


def elu(x: Number, alpha: float = 1.0) -> Number:
    """Return x for x > 0, else alpha (e^x - 1), within 0.9 ulp."""
    return _bent(x, x, None, alpha, alpha)


def selu(x: Number, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Number:
    """Return gamma x for x > 0, else gamma alpha (e^x - 1), within 0.9 ulp. The product gamma alpha is
    rounded to float32."""
    factor = float(np.float32(alpha) * np.float32(gamma))
    return (x > 0.0).where(multiply(x, x.of(gamma)), _bent(x, x, None, factor, factor))


def celu(x: Number, alpha: float = 1.0) -> Number:
    """Return x for x > 0, else alpha (e^(x / alpha) - 1), within 0.9 ulp."""
    argument = divide(x, x.of(alpha))
    product, lost = exact_product(argument, x.of(alpha))
    more = ((x - product) - lost) * (1.0 / alpha)
    return _bent(x, argument, (magnitude(argument) < 110.0).where(more, 0.0), alpha, 1.0)
