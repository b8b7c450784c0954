"""Tables of LiteRT's own roots, quotients and comparisons of 8-bit values, in fixed point as in its kernels.

LiteRT stops with an error at the root of a negative number and at a division by zero. Each function states
the table's entry for these cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph.graph import Array
from ..numerics.qparams import QParams
from .arithmetic import by_fixed, every, fixed_bounds, fixed_multiplier, rounding_shift, stored
from .lowering import Unsupported

ROOT_BITS = 20  # fraction bits of a reciprocal square root of an integer
WORD = 31  # bits of an int32 without its sign
SCALED_BITS = 8  # bits by which compared integers are shifted left
# 48 / 17 and -32 / 17 with 29 fraction bits. The line 48 / 17 - 32 / 17 * x approximates 1 / x for x from 0.5
# to 1. The Newton iteration starts with this approximation.
LINE = 1515870810, -1010580540


def reciprocal_root(x: QParams, y: QParams) -> Array:
    """Return LiteRT's own RSQRT as a table. The entries for 0 and for negative values are the largest value
    of y's type."""
    factor = fixed_multiplier(1.0 / (math.sqrt(x.scale) * y.scale))
    found = np.full(256, y.qmax, np.int64)
    for i, value in enumerate((every(x) - x.zero_point).tolist()):
        if value > 0:
            whole, shift = _inverse_root(value)
            root = by_fixed(np.array(1), whole, shift + ROOT_BITS)
            found[i] = by_fixed(root, factor[0], factor[1] - ROOT_BITS) + y.zero_point
    return stored(found, y)


def _inverse_root(value: int) -> tuple[int, int]:
    """Return (whole, shift) such that ``1 / sqrt(value)`` is about ``whole * 2**(shift - 31)``, computed with
    five Newton steps in fixed point."""
    if value <= 1:
        return 2**31 - 1, 0
    shift, pairs = 11, (31 - value.bit_length()) // 2 - 1
    shift -= pairs
    half = int(rounding_shift(np.array((value << 2 * pairs) >> 1), 1))
    x = np.array(1 << 28)
    for _ in range(5):
        cube = _saturated_left(_product(_product(x, x), x), 6)
        x = _saturated_left(_product(np.array(3 << 27), x) - _product(np.array(half), cube), 3)
    whole = int(_product(x, np.array(1518500250)))
    return (whole << -shift, 0) if shift < 0 else (whole, -shift)


def _product(a: Array, b: Array) -> Array:
    return by_fixed(a, int(b), 0)


def _saturated_left(values: Array, shift: int) -> Array:
    return np.asarray(np.clip(values << shift, -(2**31), 2**31 - 1))


def root(x: QParams, y: QParams) -> Array:
    """Return LiteRT's own SQRT as a table. SQRT truncates its result to an integer. The entries for negative
    values equal the entry for 0."""
    real = np.float32(x.scale) * (every(x) - x.zero_point).astype(np.float32)
    steps = np.sqrt(np.maximum(real, np.float32(0))) / np.float32(y.scale)
    return stored(np.trunc(steps).astype(np.float64) + y.zero_point, y)


def quotient(a: QParams, b: QParams, y: QParams, limits: tuple[float, float]) -> Array:
    """Return LiteRT's own DIV as a table [a, b]: a times the reciprocal of b in fixed point. The entries for
    b = 0 are y's largest value (a > 0), y's smallest value (a < 0) and y's zero point (a = 0). All entries
    are clipped to *limits*."""
    ratio = np.float32(a.scale) / (np.float32(b.scale) * np.float32(y.scale))
    whole, shift = fixed_multiplier(float(ratio))
    numbers = every(a) - a.zero_point
    columns = []
    for divisor in (every(b) - b.zero_point).tolist():
        values = numbers if divisor >= 0 else -numbers
        if divisor == 0:
            columns.append(np.sign(values) << 9)
            continue
        inverse, moved = _inverse(abs(divisor))
        rooms = np.array([WORD - (v if v >= 0 else ~v).bit_length() for v in values.tolist()])
        right = rooms + moved - shift
        if right.min() < 0:
            raise Unsupported(
                f"its scales {a.scale}, {b.scale} and {y.scale} are too far apart for LiteRT's own kernel"
            )
        product = by_fixed(by_fixed(values << rooms, inverse, 0), whole, 0)
        columns.append(_shifted(product, right))
    low, high = fixed_bounds(limits, y)
    return stored(np.clip(np.array(columns).T + y.zero_point, low, high), y)


def _shifted(values: Array, right: Array) -> Array:
    """Return ``values / 2**right``, rounded half away from zero. For shifts of more than 31 bits, reproduce
    LiteRT's code on x86-64: it shifts by the low five bits of *right*, and then adds 1 to the results of
    values of 0 or more."""
    rounded = [
        int(rounding_shift(v, n)) for v, n in zip(values, np.minimum(right, WORD).tolist(), strict=True)
    ]
    return np.where(right > WORD, (values >> (right & WORD)) + (values >= 0), rounded)


def _inverse(value: int) -> tuple[int, int]:
    """Return (whole, shift) such that ``1 / value`` is about ``whole * 2**(-31 - shift)``, computed with
    three Newton steps in fixed point."""
    bits = value.bit_length()
    half = np.array(value << (WORD - bits))  # *value*, scaled to 0.5 to 1, with 31 fraction bits
    x = LINE[0] + _product(half, np.array(LINE[1]))
    for _ in range(3):
        rest = (1 << 29) - _product(half, x)
        x = x + _saturated_left(_product(x, rest), 2)
    return int(_saturated_left(x, 1)), bits - 1


COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "GREATER": np.greater, "GREATER_EQUAL": np.greater_equal, "LESS": np.less, "LESS_EQUAL": np.less_equal,
    "EQUAL": np.equal, "NOT_EQUAL": np.not_equal,
}  # fmt: skip


def compared(op: str, a: QParams, b: QParams) -> Array:
    """Return LiteRT's own comparison as a table [a, b] of 0 and 1 in a's type. The kernel rounds the real
    values of both operands to multiples of 1/256, and compares these multiples."""
    if max(a.scale, b.scale) >= 1:
        raise Unsupported(
            f"it compares values with scales {a.scale} and {b.scale}; LiteRT requires less than 1"
        )
    left, right = (
        by_fixed((every(q) - q.zero_point) << SCALED_BITS, *fixed_multiplier(q.scale)) for q in (a, b)
    )
    return np.asarray(COMPARED[op](left[:, np.newaxis], right[np.newaxis, :]).astype(a.dtype))
