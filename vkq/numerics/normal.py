"""The error function and GELU, in steps that give the same bits on every device. Errors are in ulp, which
`vkq.numerics.exponential` defines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .exponential import clamped, exp_parts, gated, logistic, pair_product, power_of_2
from .rational import Pair
from .steps import (
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

# erf(x) / x - 1 as a polynomial in x^2, for x^2 in [0, 0.26]
ERF = (
    -0.0007662388980759672, 0.005198567799899659, -0.02686277648107458, 0.11283771087395732,
    -0.37612638445533736, 0.1283791670789938,
)  # fmt: skip
# W(z) = exp(z^2) erfc(z) on the intervals between EDGES. For an interval with the middle c, MIDDLES has
# W(c) as a sum of two floats; SLOPES has the coefficients of (W(c + u) - W(c)) / u as a polynomial in u.
EDGES = (0.0, 0.5, 1.0, 1.5, 2.25, 3.25, 4.75, 6.75, 9.75)
MIDDLES = (
    (0.7703465223312378, 2.539975895094799e-08), (0.5069376230239868, 2.7269157989385183e-08),
    (0.36782291531562805, 1.1367330411681986e-09), (0.2694299817085266, 3.4561438404179253e-09),
    (0.19366209208965302, 4.189415663465965e-09), (0.1369994580745697, -4.495083122589923e-10),
    (0.09669877588748932, 2.282224601968952e-09), (0.06789492070674896, -8.240283997192708e-10),
)  # fmt: skip
SLOPES = (
    (0.01564431674628085, -0.03443037115308025, 0.06957809620876906, -0.13493394183129873,
     0.24251690524475952, -0.398046829344525, 0.5845450740909327, -0.7432058924226115),
    (0.002481475415159748, -0.006170278675522908, 0.014287479298755349, -0.03189260356151741,
     0.06679056406458268, -0.12983612035324046, 0.23095813150919012, -0.36797269154169376),
    (0.0004807909117913187, -0.001346357146248473, 0.0035528425520458765, -0.009080821031629174,
     0.02201136759894378, -0.05021828449782243, 0.10679557149005305, -0.20882187594485965),
    (7.971363796576061e-05, -0.00025754388163216235, 0.0007812903638454509, -0.0023426917642258857,
     0.006738043998425657, -0.018492044222265375, 0.04814862902838916, -0.11801672265484149),
    (9.221706740360154e-06, -3.584593021770768e-05, 0.00013113752534261528, -0.0004820146160306978,
     0.0017195841052198627, -0.005934346946539818, 0.019758592969965065, -0.06323763748987446),
    (7.488662683924429e-07, -3.6768643015409545e-06, 1.689400457030975e-05, -7.984979094744383e-05,
     0.0003703537840017279, -0.0016811887502923653, 0.007465433221838978, -0.03238350597760282),
    (4.74913493246478e-08, -3.0620992203055764e-07, 1.8579230066195799e-06, -1.1703342839631089e-05,
     7.292456558919455e-05, -0.0004485975200750377, 0.0027252738341945414, -0.016343218086819263),
    (2.4822249961847784e-09, -2.1761134442191064e-08, 1.7843259021574767e-07, -1.543753814831998e-06,
     1.3286569136281748e-05, -0.00011347806434636426, 0.0009627603737240536, -0.008112988974243372),
)  # fmt: skip
ROOT_HALF = (0.7071067690849304, 1.2101617485882343e-08)  # sqrt(1/2), as a sum of two floats
TANH_LINE = (1.5957691669464111, -4.534068054340423e-08)  # 2 sqrt(2 / pi), as a sum of two floats
TANH_CUBE = (0.07135481387376785, 2.3988324659995897e-09)  # 0.044715 * 2 sqrt(2 / pi), as a sum of two floats


def erf(x: Number) -> Number:
    """Return erf(x), 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x, within 0.8 ulp."""
    small = magnitude(x) < 2.0**-60  # scaled up, because their products would be subnormal
    y = small.where(x * 2.0**60, x)
    near = scaled(y + y * polynomial(x * x, *ERF), small.where(-60, 0, "i"))
    z = clamped(magnitude(x), 0.5, 6.0)
    (high, low), n = _upper(exact_product(z, z), z, x.of(0.0))
    p = power_of_2(n)
    one, lost = exact_sum(x.of(1.0), -(high * p))
    far = (one + (lost - low * p)) ^ (x.u & SIGN)
    return is_nan(x).where(x, (magnitude(x) < 0.5).where(near, far))


def gelu(x: Number) -> Number:
    """Return x (1 + erf(x / sqrt(2))) / 2, within 1.1 ulp."""
    z = clamped(magnitude(x), 2.0**-30, 16.0)
    high, low = exact_product(z, x.of(ROOT_HALF[0]))
    square, lost = exact_product(z, z)
    (w, more), n = _upper((square * 0.5, lost * 0.5), high, low + z * ROOT_HALF[1])
    # With z = |x| / sqrt(2), the result is x erfc(z) / 2 for x < 0, and x (1 - erfc(z) / 2) for x > 0.
    p = power_of_2(n) * 0.5
    one, rest = exact_sum(x.of(1.0), -(w * p))
    q = quick_sum(one, rest - more * p)
    below = x < 0.0
    return gated(x, (below.where(w, q[0]), below.where(more, q[1])), below.where(n - 1, 0))


def gelu_tanh(x: Number) -> Number:
    """Return x (1 + tanh(y / 2)) / 2 with y = 2 sqrt(2 / pi) (x + 0.044715 x^3), within 0.8 ulp. The steps
    compute x / (1 + exp(-y))."""
    y = clamped(x, -16.0, 16.0)
    square = exact_product(y, y)
    cube = pair_product(square, (x.of(TANH_CUBE[0]), x.of(TANH_CUBE[1])))
    high, low = exact_sum(x.of(TANH_LINE[0]), cube[0])
    factor = quick_sum(high, low + (cube[1] + TANH_LINE[1]))
    twice, more = exact_product(y, factor[0])
    q, n = logistic(twice, more + y * factor[1])
    return gated(x, q, n)


def _upper(square: Pair, z: Number, more: Number) -> tuple[Pair, Number]:
    """Return (q, n) with erfc(z + more) = q * 2^n, for z in [0, 9.75]. q is a pair. *square*: (z + more)^2
    as a pair."""
    s, t, n = exp_parts(-square[0], -square[1])
    u = (z - _piece(z, [(a + b) / 2 for a, b in itertools.pairwise(EDGES)])) + more
    slope = _piece(z, [row[0] for row in SLOPES])
    for i in range(1, len(SLOPES[0])):
        slope = slope * u + _piece(z, [row[i] for row in SLOPES])
    w = quick_sum(_piece(z, [m[0] for m in MIDDLES]), _piece(z, [m[1] for m in MIDDLES]) + u * slope)
    return pair_product((s, t), w), n


def _piece(z: Number, values: Sequence[float]) -> Number:
    """Return the element of *values* for the interval between EDGES with z."""
    found = z.of(values[-1])
    for edge, value in zip(EDGES[-2:0:-1], values[-2::-1], strict=True):
        found = (z < edge).where(value, found)
    return found
