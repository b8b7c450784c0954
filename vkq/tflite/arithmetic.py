"""The arithmetic of LiteRT on 8-bit values, in NumPy. LiteRT delegates most operators to XNNPACK; all others
run in LiteRT's own kernels. Both are open source. Each function names the kernel that it reproduces. A table
has one element for each 8-bit value in ascending order, or for each pair of values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..numerics.qparams import QParams, are_scales

Array = npt.NDArray[Any]
SUM_BITS = 20  # the larger of a sum's two multipliers in XNNPACK is from 2^SUM_BITS to 2^(SUM_BITS + 1)


def every(q: QParams) -> npt.NDArray[np.int64]:
    """Return all values of the type of *q* as integers, in ascending order."""
    return np.arange(q.qmin, q.qmax + 1)


def stored(values: Array, q: QParams) -> Array:
    """Convert integers to the type of *q*. Values outside the range of the type saturate."""
    return np.asarray(np.clip(values, q.qmin, q.qmax).astype(q.dtype))


def bounds_of(limits: tuple[float, float], y: QParams) -> tuple[float, float] | None:
    """Return the bounds of a fused activation as real numbers that are multiples of y's scale. The integer
    bounds are ``round_half_even(limit / y_scale + y_zp)``. Return None if the bounds clip nothing."""
    if limits == (-math.inf, math.inf):
        return None
    whole = []
    for limit in limits:
        with np.errstate(over="ignore"):
            q = np.rint(np.float32(limit) / np.float32(y.scale) + np.float32(y.zero_point))
        whole.append(int(np.clip(q, y.qmin, y.qmax)))
    if whole == [y.qmin, y.qmax]:
        return None
    low, high = ((q - y.zero_point) * y.scale for q in whole)
    return (low, high)


def clamped(table: Array, limits: tuple[float, float] | None, y: QParams) -> Array:
    """Return a table with its entries clipped to *limits*, a result of `bounds_of`."""
    if limits is None:
        return table
    low, high = (round(v / y.scale) + y.zero_point for v in limits)
    return np.asarray(np.clip(table, low, high).astype(table.dtype))


def sum_factors(a: QParams, b: QParams, y: QParams) -> tuple[int, int, int]:
    """Return (multiplier of a, multiplier of b, right shift) of XNNPACK's sum; both multipliers < 2^21."""
    ra, rb = (np.float32(q.scale) / np.float32(y.scale) for q in (a, b))
    shift = SUM_BITS - (math.frexp(max(ra, rb))[1] - 1)
    ma, mb = (int(np.rint(np.ldexp(np.float64(r), shift))) for r in (ra, rb))
    return ma, mb, shift


def sum_table(a: QParams, b: QParams, y: QParams, subtract: bool) -> Array:
    """Return XNNPACK's ``qs8_vadd`` (with *subtract* its subtraction) as a table [a, b]."""
    ma, mb, shift = sum_factors(a, b, y)
    mb = -mb if subtract else mb
    left, right = (every(a) - a.zero_point) * ma, (every(b) - b.zero_point) * mb
    total = left[:, np.newaxis] + right[np.newaxis, :] + (1 << (shift - 1))
    return stored((total >> shift) + y.zero_point, y)


def sum_scales(a: QParams, b: QParams, y: QParams) -> Iterator[tuple[QParams, QParams, QParams]]:
    """Yield parameters (of a, b, y) with which vkq's float sum may equal `sum_table`: the file's; then
    XNNPACK's multipliers as scales; then the same with one scale changed by at most 2^-21 (relative),
    because such a change can decide how ties are rounded."""
    yield a, b, y
    ma, mb, shift = sum_factors(a, b, y)
    for step in (0, 1, 2, -1, -2, 4, -4, 8):
        for left, right in ((step, 0), (0, step)) if step else ((0, 0),):
            scales = [
                float(np.float32(np.ldexp(m, -shift) * (1 + more * 2.0**-24)))
                for m, more in ((ma, left), (mb, right))
            ]
            if are_scales(np.array(scales, np.float32)).all():
                one, two = (QParams(v, q.zero_point, q.dtype) for v, q in zip(scales, (a, b), strict=True))
                yield one, two, QParams(1.0, y.zero_point, y.dtype)


def product_table(a: QParams, b: QParams, y: QParams) -> Array:
    """Return XNNPACK's ``qs8_vmul`` as a table [a, b]. The kernel rounds the product, ties to even, before it
    adds the zero point."""
    left, right = (every(q) - q.zero_point for q in (a, b))
    product = (left[:, np.newaxis] * right[np.newaxis, :]).astype(np.float32)
    return stored(np.rint(product * _product_scale(a, b, y)).astype(np.float64) + y.zero_point, y)


def product_scales(a: QParams, b: QParams, y: QParams) -> Iterator[tuple[QParams, QParams, QParams]]:
    """Yield parameters (of a, b, y) with which vkq's product may equal `product_table`. They need not,
    because vkq rounds after adding the zero point. The first are the file's. In the others, a's scale is
    a_scale * b_scale / y_scale, changed by at most 3 * 2^-23 (relative): such a change can decide how ties
    are rounded."""
    yield a, b, y
    scale = _product_scale(a, b, y)
    for step in (1, -1, 2, -2, 3, -3):
        near = scale * np.float32(1 + step * 2.0**-23)
        if are_scales(near):
            one, two = (dataclasses.replace(q, scale=1.0) for q in (b, y))
            yield dataclasses.replace(a, scale=float(near)), one, two


def _product_scale(a: QParams, b: QParams, y: QParams) -> Any:
    return np.float32(a.scale) * np.float32(b.scale) / np.float32(y.scale)


def fixed_multiplier(real: float) -> tuple[int, int]:
    """Return (multiplier, shift) of LiteRT's kernels for *real*. The number *real* is about ``multiplier *
    2**(shift - 31)``.

    >>> fixed_multiplier(0.75)
    (1610612736, 0)
    """
    if real == 0:
        return 0, 0
    fraction, shift = math.frexp(real)
    whole = math.floor(fraction * 2**31 + 0.5)
    if whole == 2**31:
        whole, shift = whole // 2, shift + 1
    return (0, 0) if shift < -31 else (whole, shift)


def by_fixed(values: Array, whole: int, shift: int, up: bool = False) -> Array:
    """Return LiteRT's ``MultiplyByQuantizedMultiplier`` of *values*: multiply by *whole* / 2**31 and round
    ties up; then shift, and round ties away from zero. With *up*, round ties up after the shift, too, as
    LiteRT's vector instructions do."""
    moved = np.asarray(values, np.int64) << max(shift, 0)
    return rounding_shift((moved * whole + (1 << 30)) >> 31, max(-shift, 0), up)


def rounding_shift(values: Array, shift: int, up: bool = False) -> Array:
    """Return ``values / 2**shift``, rounded to nearest. Ties are rounded away from zero; with *up*, they are
    rounded up."""
    mask = (1 << shift) - 1
    rest, threshold = values & mask, (mask >> 1) + ((values < 0) & (not up))
    return np.asarray((values >> shift) + (rest > threshold))


def requantized(x: QParams, y: QParams) -> Array:
    """Return XNNPACK's conversion from x's scale to y's scale as a table; x and y have the same type. The
    kernel multiplies x_zp - x_q by the negative ratio of the scales, which has 8 fraction bits."""
    factor = int(np.rint(np.float32(-256) * (np.float32(x.scale) / np.float32(y.scale))))
    return stored(_eighths((x.zero_point - every(x)) << 7, factor) + y.zero_point, y)


def leaky(x: QParams, y: QParams, alpha: float) -> Array:
    """Return XNNPACK's ``vlrelu`` (leaky ReLU) as a table: `requantized` with the slope *alpha* below the
    zero point."""
    scale = np.float32(x.scale) / np.float32(y.scale)
    above, below = (int(np.rint(np.float32(-256) * s)) for s in (scale, scale * np.float32(alpha)))
    numbers = every(x)
    factor = np.where(numbers > x.zero_point, above, below)
    return stored(_eighths((x.zero_point - numbers) << 7, factor) + y.zero_point, y)


def _eighths(values: Array, factor: Any) -> Array:
    return np.asarray((values * factor + 0x4000) >> 15)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x.astype(np.float64), -700, 700))))


def _gelu(x: Array) -> Array:
    tail = np.vectorize(math.erfc)((x * np.float32(-math.sqrt(0.5))).astype(np.float64))
    return np.asarray(np.float32(0.5) * x * tail.astype(np.float32))


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + _wide(np.tanh, inner)))


def _wide(function: Callable[[Array], Array], x: Array) -> Array:
    """Compute *function* in float64 and round the result to float32."""
    return np.asarray(function(x.astype(np.float64)).astype(np.float32))


# Functions of float32 values from which XNNPACK or LiteRT makes a table for 8-bit values.
REAL: dict[str, Callable[[Array], Array]] = {
    "LOGISTIC": _sigmoid,
    "TANH": lambda x: _wide(np.tanh, x),
    "ELU": lambda x: np.where(x > 0, x, _wide(np.expm1, np.minimum(x, 0))),
    "GELU": _gelu,
    "GELU-tanh": _gelu_tanh,
    "EXP": lambda x: _wide(np.exp, x),
    # log(0) = -inf becomes the smallest value of the type, and x < 0 is treated as 0
    "LOG": lambda x: _wide(np.log, np.maximum(x, 0)),
}
WITH_ZERO_POINT = ("LOGISTIC", "TANH", "ELU")  # XNNPACK makes the tables of these operators


def real_table(op: str, x: QParams, y: QParams) -> Array:
    """Return the table of ``f(x_scale * (x_q - x_zp)) * (1 / y_scale) + y_zp``. XNNPACK adds the zero point
    and then rounds ties to even. LiteRT rounds ties away from zero and then adds the zero point."""
    with np.errstate(all="ignore"):
        real = (every(x) - x.zero_point).astype(np.float32) * np.float32(x.scale)
        steps = REAL[op](real).astype(np.float32) * (np.float32(1) / np.float32(y.scale))
        if op in WITH_ZERO_POINT:
            return stored(np.rint(steps + np.float32(y.zero_point)).astype(np.float64), y)
        away = np.trunc(steps.astype(np.float64) + np.copysign(0.5, steps))
        return stored(away + y.zero_point, y)


def bounded(x: QParams, y: QParams, limits: tuple[float, float]) -> Array:
    """Return LiteRT's own ``QuantizedReluX`` as a table. The integer bounds are rounded to nearest, ties away
    from zero."""
    whole, shift = fixed_multiplier(x.scale / y.scale)
    values = y.zero_point + by_fixed(every(x) - x.zero_point, whole, shift)
    low, high = fixed_bounds(limits, y)
    return stored(np.clip(values, low, max(low, high)), y)


def fixed_bounds(limits: tuple[float, float], y: QParams) -> tuple[int, int]:
    """Return the integer bounds (smallest, largest) of a fused activation in LiteRT's own kernels."""
    low, high = y.qmin, y.qmax
    for limit in limits:
        if math.isfinite(limit):
            step = np.float32(limit) / np.float32(y.scale)
            bound = int(np.trunc(step + np.copysign(np.float32(0.5), step))) + y.zero_point
            low, high = (max(low, bound), high) if limit == limits[0] else (low, min(high, bound))
    return low, high


def other_type(x: QParams, y: QParams) -> tuple[Array, Array]:
    """Return two tables for LiteRT's own QUANTIZE of int8 to uint8 or back. LiteRT rounds elements in
    vectors of 16 differently from the elements after the last vector. The first table is for vectors, the
    second for the remaining elements."""
    values, (whole, shift) = every(x) - x.zero_point, fixed_multiplier(x.scale / y.scale)
    vector, single = (stored(by_fixed(values, whole, shift, up) + y.zero_point, y) for up in (True, False))
    return vector, single


def _high16(a: Array, b: int) -> Array:
    """Return the product of 16-bit integers, divided by 2**15 and rounded to nearest, ties up."""
    product = a * b
    return np.asarray(
        np.trunc((product + np.where(product >= 0, 1 << 14, 1 - (1 << 14))) / 2**15).astype(int)
    )


def _multiplier16(real: float) -> tuple[int, int]:
    """Return (multiplier, shift) as `fixed_multiplier`, with the multiplier rounded to its upper 16 bits."""
    whole, shift = fixed_multiplier(real)
    return min((whole + (1 << 15)) >> 16, 32767), shift


def hard_swish(x: QParams, y: QParams) -> Array:
    """Return LiteRT's own HARD_SWISH as a table. The kernel works in 16 bits: x, in units of x_scale / 128,
    is multiplied by a gate that is a clamped linear function of x."""
    fine = np.float32(1 / 128) * np.float32(x.scale)
    (m, shift), (slope, exponent) = (
        _multiplier16(float(fine / np.float32(scale))) for scale in (y.scale, 3 / 32768)
    )
    values = (every(x) - x.zero_point) << 7
    gate, limits = values, (-32768, 32767)
    if exponent > 0:
        gate = np.clip(_high16(np.clip(gate << (exponent - 1), *limits), slope) << 1, *limits)
    else:
        gate = rounding_shift(_high16(gate, slope), -exponent)
    gate = (gate + (1 << 15)) >> 1
    product = np.trunc(gate * _high16(values, m) / 2**15).astype(int)
    if shift < -15:  # this case does not occur for 8-bit values
        moved = np.where(product < 0, -1, 1)
    else:
        moved = rounding_shift(product, -shift) if shift <= 0 else product << shift
    return stored(moved + y.zero_point, y)


def magnitude(x: QParams, y: QParams) -> Array:
    """Return LiteRT's own ABS as a table."""
    values = by_fixed(np.abs(every(x) - x.zero_point), *fixed_multiplier(x.scale / y.scale))
    return stored(values + y.zero_point, y)


def prelu(x: QParams, alpha: QParams, y: QParams) -> Array:
    """Return LiteRT's own PRELU as a table [x, alpha]."""
    values, slopes = (every(x) - x.zero_point)[:, None], (every(alpha) - alpha.zero_point)[None, :]
    above = by_fixed(values, *fixed_multiplier(x.scale / y.scale))
    below = by_fixed(values * slopes, *fixed_multiplier(x.scale * alpha.scale / y.scale))
    return stored(np.where(values >= 0, above, below) + y.zero_point, y)


def squared_difference(a: QParams, b: QParams, y: QParams) -> Array:
    """Return LiteRT's own SQUARED_DIFFERENCE as a table [a, b]. Both operands are first converted to the same
    scale, with 7 additional fraction bits."""
    both = 2 * max(a.scale, b.scale)
    left, right = (
        by_fixed((every(q) - q.zero_point) << 7, *fixed_multiplier(q.scale / both)) for q in (a, b)
    )
    squares = (left[:, np.newaxis] - right[np.newaxis, :]) ** 2
    return stored(by_fixed(squares, *fixed_multiplier(both * both / (2**14 * y.scale))) + y.zero_point, y)
