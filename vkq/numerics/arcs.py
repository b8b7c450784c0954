"""Inverse trigonometric, hyperbolic and inverse hyperbolic functions, in steps that give the same bits on
every device. Errors are in ulp, which `vkq.numerics.exponential` defines.

Near zero, an odd function is computed as x + x^3 P(x^2). The coefficients of P are from mpmath.chebyfit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .circular import HALF_PI
from .exponential import clamped, exp_parts, log_of_pair, power_of_2
from .rational import Pair, pair_quotient, pair_root
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

# A constant NAME has the coefficients of (f(x) / x - 1) / x^2 as a polynomial in x^2, for the function f of
# this name. The fit is for x^2 in [0, 0.1717] (ATAN) or [0, 0.25] (all others).
ATAN = (
    0.05046648875608924, -0.0862409863998892, 0.11071287551546859, -0.14284147012133833,
    0.19999977181137085, -0.33333333279030264,
)  # fmt: skip
ASIN = (
    0.03098546039993495, 0.01056694782140368, 0.02361371422189475, 0.030268919101073113,
    0.044647675217118564, 0.07499992383419403, 0.16666666686147094,
)  # fmt: skip
SINH = (0.00019944915989506402, 0.008333236055618688, 0.16666666801845706)
ASINH = (
    -0.007158596778179455, 0.015326256745157658, -0.022049867519992015, 0.030354793762911225,
    -0.044641749674736275, 0.0749999828760368, -0.16666666662305857,
)  # fmt: skip
ATANH = (
    0.15806446619031206, 0.018622824573026445, 0.08798372792984532, 0.08954825186679904,
    0.11120033768225845, 0.14285430352854092, 0.20000003412513986, 0.33333333326653686,
)  # fmt: skip
LARGE = 2.0**14  # for x >= LARGE, sqrt(x^2 + 1) = x with a relative error below 2^-29


def arctangent(x: Number) -> Number:
    """Return atan(x), within 0.75 ulp. It has the sign of x and the magnitude

    - atan(t) with t = |x|, if |x| <= tan(pi/8);
    - pi/4 + atan(t) with t = (|x| - 1) / (|x| + 1), if |x| <= tan(3 pi/8);
    - pi/2 + atan(t) with t = -1 / |x|, if |x| is larger.
    """
    size = clamped(magnitude(x), 0.0, 2.0**58)
    middle, far = size > 0.41421356, size > 2.4142136
    up, down = exact_sum(size, x.of(-1.0)), exact_sum(size, x.of(1.0))
    n = far.where(-1.0, middle.where(up[0], 0.0)), far.where(0.0, up[1])
    d = far.where(size, middle.where(down[0], 1.0)), far.where(0.0, down[1])
    t = pair_quotient(n, d)
    t = middle.where(t[0], size), middle.where(t[1], 0.0)
    base = [far.where(part, middle.where(part / 2, 0.0)) for part in HALF_PI]
    high, low = exact_sum(base[0], t[0])
    found = high + (low + (base[1] + (t[1] + _tail(t[0], ATAN))))
    return is_nan(x).where(x, found ^ (x.u & SIGN))


def arcsine(x: Number) -> Number:
    """Return asin(x), within 0.75 ulp; NaN if |x| > 1."""
    near, root = _arcs(x)
    high, low = exact_sum(x.of(HALF_PI[0]), root[0] * -2.0)
    far = (high + (low + (HALF_PI[1] - (root[1] + root[1])))) ^ (x.u & SIGN)
    return _within_1(x, (magnitude(x) > 0.5).where(far, near[0] + near[1]))


def arccosine(x: Number) -> Number:
    """Return acos(x), within 0.75 ulp; NaN if |x| > 1."""
    near, root = _arcs(x)
    far, below = magnitude(x) > 0.5, x < 0.0
    turns = far.where(below.where(2.0, 0.0), 1.0)
    part = far.where(below.where(root[0] * -2.0, root[0] * 2.0), -near[0])
    more = far.where(below.where(root[1] * -2.0, root[1] * 2.0), -near[1])
    high, low = exact_sum(turns * HALF_PI[0], part)
    return _within_1(x, high + (low + (turns * HALF_PI[1] + more)))


def _arcs(x: Number) -> tuple[Pair, Pair]:
    """Return two pairs: asin(x), valid for |x| <= 1/2; and asin(sqrt((1 - |x|) / 2)), valid for larger |x|.
    The second is half of acos(|x|)."""
    z = clamped((magnitude(x) * -0.5) + 0.5, 0.0, 0.25)
    s = pair_root((z, z.of(0.0)))
    return (x, _tail(x, ASIN)), (s[0], s[1] + _tail(s[0], ASIN))


def _within_1(x: Number, found: Number) -> Number:
    return (magnitude(x).u > 0x3F800000).where(np.nan, found)


def _tail(x: Number, coefficients: Sequence[float]) -> Number:
    """Return x^3 P(x^2). *coefficients*: the coefficients of P."""
    square = x * x
    return (x * square) * polynomial(square, *coefficients)


def hyperbolic_sine(x: Number) -> Number:
    """Return sinh(x), within 0.75 ulp."""
    far = _half_sum(x, -1.0) ^ (x.u & SIGN)
    return is_nan(x).where(x, (magnitude(x) < 0.5).where(x + _tail(x, SINH), far))


def hyperbolic_cosine(x: Number) -> Number:
    """Return cosh(x), within 0.75 ulp."""
    return is_nan(x).where(x, _half_sum(x, 1.0))


def _half_sum(x: Number, sign: float) -> Number:
    """Return (e^|x| + sign * e^-|x|) / 2. *sign* is 1 (cosh) or -1 (sinh)."""
    size = clamped(magnitude(x), 0.0, 100.0)
    s, t, n = exp_parts(size)
    other, more, _ = exp_parts(-size)
    p = power_of_2(n.of(0) - (n + n)) * sign
    high, low = exact_sum(s, other * p)
    return scaled(high + (low + (t + more * p)), n - 1)


def inverse_hyperbolic_sine(x: Number) -> Number:
    """Return asinh(x) = log(|x| + sqrt(x^2 + 1)) with the sign of x, within 0.75 ulp."""
    size = magnitude(x)
    found = (size < 0.5).where(size + _tail(size, ASINH), _log_of_sum(size, 1.0)) ^ (x.u & SIGN)
    return (size.u >= INFINITY).where(x, found)


def inverse_hyperbolic_cosine(x: Number) -> Number:
    """Return acosh(x) = log(x + sqrt(x^2 - 1)), within 0.75 ulp; NaN if x < 1."""
    found = (x.u >= INFINITY).where(x, _log_of_sum(magnitude(x), -1.0))
    return (is_nan(x) | (x < 1.0)).where(np.nan, found)


def _log_of_sum(x: Number, one: float) -> Number:
    """Return log(x + sqrt(x^2 + one)) for x >= 1/2. *one* is 1 (asinh) or -1 (acosh)."""
    large = x > LARGE
    product, lost = exact_product(*[clamped(x, 0.5, LARGE)] * 2)
    high, low = exact_sum(product, x.of(one))
    root = pair_root(quick_sum(high, low + lost))
    high, low = exact_sum(x, large.where(0.0, root[0]))
    a = quick_sum(high, large.where(0.0, low + root[1]))
    high, low = log_of_pair(a, large.where(1, 0, "i"))
    return high + low


def inverse_hyperbolic_tangent(x: Number) -> Number:
    """Return atanh(x) = log((1 + |x|) / (1 - |x|)) / 2 with the sign of x, within 0.75 ulp. It is infinite
    if |x| = 1, and NaN if |x| > 1."""
    size = clamped(magnitude(x), 0.0, 1.0 - 2.0**-24)
    ratio = pair_quotient(exact_sum(x.of(1.0), size), (x.of(1.0) - size, x.of(0.0)))
    high, low = log_of_pair(ratio, x.of(0, "i"))
    found = (size < 0.5).where(x + _tail(x, ATANH), ((high + low) * 0.5) ^ (x.u & SIGN))
    found = magnitude(x).u.equals(0x3F800000).where(x.of(np.inf) | (x.u & SIGN), found)
    return _within_1(x, found)
