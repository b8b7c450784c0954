"""Tests of float32 functions that are composed of primitive operations: their distance from the exact values,
special values, and the effect of flushing subnormal values."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vkq.numerics import arcs, circular, elementary, exponential, normal, powers, rational, software
from vkq.numerics.steps import HIDDEN, INFINITY, SIGN, Computed, Kind, Number, computed, flushed

Wide = np.longdouble
TINY = np.float32(2.0**-126)
EDGES = np.float32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, TINY, -TINY, 2.0**127, 0.5, 1.5, 2.5, 8388607.5])


class Flushing(Computed):
    """A simulated device that flushes every subnormal sum and product to zero."""

    def emit(self, op: str, kind: Kind, *operands: Number) -> Number:
        result = super().emit(op, kind, *operands)
        if op in ("fadd", "fsub", "fmul"):
            bits = result.array.view(np.uint32)  # type: ignore[attr-defined]
            small = (bits & np.uint32(INFINITY)) == 0
            result.array = np.where(small, bits & np.uint32(SIGN), bits).view(np.float32)  # type: ignore[attr-defined]
        return result


def sample(seed: int, count: int) -> Any:
    """Return values of every exponent and of common magnitudes, all float16 values, special values."""
    r = np.random.default_rng(seed)
    every = r.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = np.concatenate([r.uniform(-110, 110, count), r.normal(0, 2, count)]).astype(np.float32)
    half = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    return computed(flushed, np.concatenate([EDGES, every, usual, half]))


def units(got: Any, want: Any) -> Any:
    """Return the distances in ulp. If the exact value is subnormal, 0 counts as correct; if it is beyond
    float32's range, infinity does."""
    size = np.abs(want)
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.where(size > 0, size, 1)))
        apart = np.abs(got.astype(Wide) - want) / np.exp2(np.maximum(exponent, -126) - 23)
    small, large = size <= TINY, size >= Wide(2) ** 128 * (1 - Wide(2) ** -25)
    apart = np.where(small, np.where(np.abs(got) <= TINY, 0, np.inf), apart)
    apart = np.where(large, np.where(np.isinf(got) & (np.sign(got) == np.sign(want)), 0, np.inf), apart)
    none = np.isnan(got) | np.isnan(want)
    return np.where(none, np.where(np.isnan(got) == np.isnan(want), 0, np.inf), apart)


def upper(z: Any) -> Any:
    """Return erfc(z) in the type `Wide`."""
    return np.array([math.erfc(v) for v in np.asarray(z, np.float64)], Wide)


def softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def gate(x: Any, closed: Any) -> Any:
    return np.where(x == -np.inf, 0, x * closed)


def wide(value: float) -> Any:
    """Return the value of an attribute, which is a float32, in the type `Wide`."""
    return Wide(np.float32(value))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


REAL: dict[str, tuple[Callable[..., Number], Callable[[Any], Any], float]] = {
    "exp": (exponential.exp, np.exp, 0.75),
    "log": (exponential.log, np.log, 0.65),
    "sigmoid": (exponential.sigmoid, sigmoid, 0.75),
    "swish": (lambda x: exponential.swish(x, 1.702), lambda x: gate(x, sigmoid(wide(1.702) * x)), 0.75),
    "tanh": (exponential.tanh, np.tanh, 0.75),
    "softplus": (exponential.softplus, softplus, 0.75),
    "mish": (exponential.mish, lambda x: gate(x, np.tanh(softplus(x))), 0.75),
    "elu": (lambda x: exponential.elu(x, 1.3), lambda x: np.where(x > 0, x, wide(1.3) * np.expm1(x)), 0.9),
    "celu": (
        lambda x: exponential.celu(x, 1.7),
        lambda x: np.where(x > 0, x, wide(1.7) * np.expm1(x / wide(1.7))),
        0.9,
    ),
    "erf": (normal.erf, lambda x: np.array([math.erf(v) for v in x.astype(np.float64)], Wide), 0.75),
    "gelu": (normal.gelu, lambda x: gate(x, upper(-x / np.sqrt(Wide(2))) / 2), 1.0),
    "gelu_tanh": (
        normal.gelu_tanh,
        lambda x: gate(
            x, sigmoid(2 * np.sqrt(2 / Wide("3.14159265358979323846")) * (x + Wide("0.044715") * x**3))
        ),
        0.75,
    ),
    "sinh": (arcs.hyperbolic_sine, np.sinh, 0.75),
    "cosh": (arcs.hyperbolic_cosine, np.cosh, 0.75),
    "asinh": (arcs.inverse_hyperbolic_sine, np.arcsinh, 0.75),
    "acosh": (arcs.inverse_hyperbolic_cosine, np.arccosh, 0.75),
    "atanh": (arcs.inverse_hyperbolic_tangent, np.arctanh, 0.75),
    "asin": (arcs.arcsine, np.arcsin, 0.75),
    "acos": (arcs.arccosine, np.arccos, 0.75),
    "atan": (arcs.arctangent, np.arctan, 0.75),
    "square_root": (rational.square_root, np.sqrt, 0.5),
    "inverse": (lambda x: rational.divide(x.of(1.0), x), lambda x: 1 / x, 0.5),
}


@pytest.mark.parametrize("name", REAL)
def test_near_the_real_value(name: str) -> None:
    """Errors are at most the stated distance. The bits do not change if subnormal values are flushed to
    zero."""
    function, real, most = REAL[name]
    x = sample(1, 20_000)
    with np.errstate(all="ignore"):
        want = real(x.astype(Wide))
        got, other = computed(function, x), function(Flushing(x))
    assert isinstance(other, Computed)
    np.testing.assert_array_equal(got, other.array)
    apart = units(got, want)
    at = int(np.argmax(apart))
    assert apart[at] <= most, (x[at], got[at], want[at])
    assert not np.any((np.abs(got) < TINY) & (got != 0))


@pytest.mark.parametrize("name", ["sine", "cosine", "tangent"])
def test_turns(name: str) -> None:
    """Trigonometric functions are within 0.9 ulp for angles of all sizes, among them the float32 nearest to
    a multiple of pi / 2. The reference is float64, whose error is below one rounding except near zeros of
    the function."""
    x = np.append(sample(2, 20_000), np.float32([16367173.0 * 2.0**72, 8.3e-7 + 355, 355.0, 3.1415927]))
    with np.errstate(all="ignore"):
        real = {"sine": np.sin, "cosine": np.cos, "tangent": np.tan}[name]
        want = real(x.astype(np.float64)).astype(Wide)
        apart = units(computed(getattr(circular, name), x), want)
    assert apart.max() <= 0.9


def test_powers() -> None:
    """Powers are within 0.9 ulp for results of all sizes. For every pair of special values, the result is NaN
    where C's pow gives NaN, and otherwise has the sign of C's result and is within 0.9 ulp."""
    r = np.random.default_rng(3)
    x = np.concatenate([r.lognormal(0, 5, 30_000), 1 + r.normal(0, 1e-3, 30_000)]).astype(np.float32)
    y = np.concatenate(
        [r.uniform(-87, 88, 30_000) / np.log(x[:30_000].astype(float)), r.normal(0, 20, 30_000)]
    )
    y = computed(flushed, y.astype(np.float32))
    with np.errstate(all="ignore"):
        apart = units(computed(powers.power, x, y), np.power(x.astype(Wide), y.astype(Wide)))
    assert apart.max() <= 0.9
    edges = np.append(EDGES, np.float32([3, -3, 2, -2, 16777216, 16777217, 1e30]))
    x, y = np.meshgrid(edges, edges)
    with np.errstate(all="ignore"):
        want = np.power(x, y)
        got = computed(powers.power, x, y)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))
    with np.errstate(all="ignore"):
        assert units(got, np.power(x.astype(Wide), y.astype(Wide))).max() <= 0.9


@pytest.mark.parametrize("near", [False, True])
def test_exactly_rounded(near: bool) -> None:
    """Sums, products and quotients equal NumPy's, also if they are computed with integers; subnormal
    results are 0."""
    r = np.random.default_rng(4)
    x = sample(5, 30_000)
    y = r.permutation(x)
    if near:  # test sums that cancel, and quotients near 1
        with np.errstate(all="ignore"):
            y = computed(
                flushed, x * r.choice(np.float32([1, 1 + 2**-23, 1 - 2**-24, 2, -1, -1 - 2**-23]), len(x))
            )
    for function, exact in (
        (rational.add, np.add), (software.soft_sum, np.add), (rational.subtract, np.subtract),
        (rational.multiply, np.multiply), (software.soft_product, np.multiply), (rational.divide, np.divide),
        (elementary.remainder, np.fmod), (elementary.maximum, np.fmax), (elementary.minimum, np.fmin),
    ):  # fmt: skip
        with np.errstate(all="ignore"):
            want, got = exact(x, y), computed(function, x, y)
        want = np.where(np.isnan(x) | np.isnan(y), np.float32(np.nan), want)
        small = np.abs(want) <= TINY
        np.testing.assert_array_equal(got[~small], want[~small], str(function))
        assert np.all((got[small] == 0) | ((got[small] == want[small]) & (np.abs(got[small]) == TINY)))


def test_roundings() -> None:
    x = np.append(sample(6, 30_000), np.arange(-9, 9, 0.25).astype(np.float32))
    for function, exact in (
        (elementary.truncated, np.trunc), (elementary.floor, np.floor), (elementary.ceil, np.ceil),
        (elementary.round_even, np.rint), (elementary.sign, np.sign),
    ):  # fmt: skip
        with np.errstate(all="ignore"):
            want = exact(x)
        np.testing.assert_array_equal(computed(function, x), want)
    np.testing.assert_array_equal(np.signbit(computed(elementary.ceil, np.float32([-0.5]))), [True])
    for function, exact in (
        (elementary.less, np.less), (elementary.less_or_equal, np.less_equal), (elementary.equal, np.equal),
    ):  # fmt: skip
        np.testing.assert_array_equal(computed(function, x, x[::-1]), exact(x, x[::-1]))


def test_conversions() -> None:
    """Conversions are correct for every float16, the midpoints between neighbouring float16 numbers, and the
    extremes of the integer types."""
    half = np.arange(65536, dtype=np.uint32)
    real = half.astype(np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(_of(elementary.from_half(Computed(half, "u"))), real)
    with np.errstate(all="ignore"):
        up = np.nextafter(real, np.float32(np.inf))
        between = ((real[:-1].astype(float) + real[1:]) / 2).astype(np.float32)
    x = computed(flushed, np.concatenate([real, up, between, sample(7, 30_000)]))
    with np.errstate(all="ignore"):
        want = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(computed(elementary.halved, x), want)
    whole = np.array([0, 1, -1, 2**31 - 1, -(2**31), 16777217, -16777219, 2**30 + 65], np.int32)
    real = _of(elementary.from_int(Computed(whole, "i")))
    np.testing.assert_array_equal(real, whole.astype(np.float32))
    assert _of(elementary.to_int(Computed(np.float32([3e9, -3e9, np.nan, 1.9, -1.9])))).tolist() == [
        2**31 - 1, -(2**31), 0, 1, -1,
    ]  # fmt: skip
    assert HIDDEN == 1 << 23


def _of(number: Number) -> Any:
    assert isinstance(number, Computed)
    return number.array
