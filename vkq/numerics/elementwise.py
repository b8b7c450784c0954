"""Element-wise operators on quantized arrays, and means over whole images, in NumPy.

Every formula is a sequence of float32 steps, each rounded to nearest even. The steps are those of ONNX
Runtime's CPU provider on x86-64 (QLinearAdd, QLinearMul, QLinearGlobalAveragePool), so the results have the
same bytes.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vkq.errors import ArgumentError
from vkq.numerics.qparams import SMALLEST_SCALE, QParams, are_scales
from vkq.numerics.quantize import dequantize, quantize
from vkq.numerics.requantize import Activation, activation_bounds

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
BinaryOp = Literal["add", "sub", "mul"]
BINARY_OPS: tuple[BinaryOp, ...] = ("add", "sub", "mul")


def fused_multiply_add(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> Float32:
    """Return ``float32(a * b + c)`` of float32 values, rounded once.

    The product is exact in float64. The float64 sum is rounded to odd: its last bit is set if it is
    inexact. Rounding such a sum to float32 gives the correctly rounded sum.

    >>> float(fused_multiply_add(1 + 2.0**-12, 1 + 2.0**-12, -1.0)) == 2.0**-11 + 2.0**-24
    True
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        product = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
        addend = np.asarray(c, np.float32).astype(np.float64)
        total = np.asarray(product + addend)
        back = total - product
        error = (product - (total - back)) + (addend - back)
        inexact = (error != 0) & np.isfinite(total) & (total.view(np.int64) & 1 == 0)
        total[inexact] = np.nextafter(total[inexact], np.where(error[inexact] > 0, np.inf, -np.inf))
        return np.asarray(total.astype(np.float32))


def scales_of_sum(
    a: QParams, b: QParams, y: QParams, subtract: bool = False
) -> tuple[np.float32, np.float32, np.float32]:
    """Return (ra, rb, offset) for a sum ``y_q = round(a_q * ra + b_q * rb + offset)``, computed in ONNX
    Runtime's order:

        ra = a_scale / y_scale,  rb = b_scale / y_scale (negative with *subtract*)
        offset = y_zp - fma(ra, a_zp, rb * b_zp)
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        ra, rb = np.float32(a.scale) / np.float32(y.scale), np.float32(b.scale) / np.float32(y.scale)
        rb = np.float32(-rb) if subtract else rb
        zero = fused_multiply_add(ra, np.float32(a.zero_point), np.float32(rb * np.float32(b.zero_point)))
        return ra, rb, np.float32(np.float32(y.zero_point) - zero)


def scale_of_product(a: QParams, b: QParams, y: QParams) -> float:
    """Return ``(a_scale * b_scale) / y_scale``, with each step rounded to float32."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(np.float32(a.scale) * np.float32(b.scale)) / np.float32(y.scale))


def binary(
    op: BinaryOp, a: Array, b: Array, aq: QParams, bq: QParams, yq: QParams, activation: Activation = None
) -> Array:
    """Add, subtract or multiply two quantized arrays with NumPy's broadcasting, as ONNX Runtime's
    QLinearAdd and QLinearMul do.

        add, sub    y_q = saturate(round_half_even(fma(a_q, ra, fma(b_q, rb, offset))))
        mul         y_q = saturate(round_half_even(float32((a_q - a_zp) * (b_q - b_zp)) * r + y_zp))

    `scales_of_sum` returns ra, rb and offset; `scale_of_product` returns r. The zero point is added before
    rounding, so a tie goes to the even y_q. If only a is broadcast along the innermost axis of the result,
    the operands of add swap roles (`swaps`), as in ONNX Runtime.

    >>> q = QParams(0.5)
    >>> binary("add", np.array([1, 100], np.int8), np.array([2, 100], np.int8), q, q, q)
    array([  3, 127], dtype=int8)
    """
    if op not in BINARY_OPS:
        raise ArgumentError(f"binary: op is {op!r}; it must be one of {', '.join(BINARY_OPS)}.")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if op == "mul":
            product = (a.astype(np.int32) - aq.zero_point) * (b.astype(np.int32) - bq.zero_point)
            value = product.astype(np.float32) * np.float32(scale_of_product(aq, bq, yq)) + np.float32(
                yq.zero_point
            )
        else:
            value = _sum(op, a, b, aq, bq, yq)
    low, high = activation_bounds(activation, yq)
    rounded = np.rint(np.where(np.isnan(value), np.float32(low), value))
    return np.asarray(np.clip(rounded, low, high).astype(np.int32).astype(yq.dtype))


def _sum(op: BinaryOp, a: Array, b: Array, aq: QParams, bq: QParams, yq: QParams) -> Float32:
    a32, b32, subtract = a.astype(np.float32), b.astype(np.float32), op == "sub"
    if not subtract and swaps(a.shape, b.shape):
        rb, ra, offset = scales_of_sum(bq, aq, yq)
        return fused_multiply_add(b32, rb, fused_multiply_add(a32, ra, offset))
    ra, rb, offset = scales_of_sum(aq, bq, yq, subtract)
    return fused_multiply_add(a32, ra, fused_multiply_add(b32, rb, offset))


def swaps(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> bool:
    """Return True if ONNX Runtime's inner loop reads *a* as a scalar: *a* has size 1 along the last axis on
    which the result is longer than 1."""
    if not a_shape or not b_shape:
        return not a_shape or a_shape[-1] == 1
    for a, b in zip(reversed(a_shape), reversed(b_shape), strict=False):
        if max(a, b) != 1:
            return a == 1
    return True


def binary_table(op: BinaryOp, a: QParams, b: QParams, y: QParams, activation: Activation = None) -> Array:
    """Return the results of `binary` for all pairs of values, (256, 256), with the index [b_q - b_qmin][a_q
    - a_qmin]. The operands are not swapped (`swaps`)."""
    a_all, b_all = (np.arange(q.qmin, q.qmax + 1).astype(q.dtype) for q in (a, b))
    return binary(op, a_all[np.newaxis], b_all[:, np.newaxis], a, b, y, activation)


@functools.lru_cache(maxsize=256)
def float_sum(
    a: QParams, b: QParams, y: QParams, bounds: tuple[float, float]
) -> tuple[QParams, QParams] | None:
    """Return parameters of a and b with which `binary` gives the bytes of these float32 operators:
    dequantize a and b, add, clamp to *bounds*, quantize. The scales are the given scales or neighbouring
    floats. Return None if every choice of scales gives a wrong byte for some pair of codes, for example
    because of ties and an odd zero point of y.

    >>> float_sum(QParams(0.25), QParams(0.5), QParams(0.75), (0.0, 6.0))
    (QParams(scale=0.25, zero_point=0, dtype='int8'), QParams(scale=0.5, zero_point=0, dtype='int8'))
    """
    codes = [np.arange(q.qmin, q.qmax + 1).astype(q.dtype) for q in (a, b)]
    left, right = np.broadcast_arrays(codes[0], codes[1][:, np.newaxis])
    with np.errstate(over="ignore", invalid="ignore"):
        sums = dequantize(left, a) + dequantize(right, b)
        wanted = quantize(np.clip(sums, *np.array(bounds, np.float32)), y)
    # The pairs of codes for which earlier scales gave wrong bytes. They are tested first: the next scales
    # often fail for them, too.
    hard = np.zeros(wanted.shape, bool)
    given = np.array([a.scale, b.scale], np.float32)
    for steps in sorted(itertools.product(range(-3, 4), repeat=2), key=lambda pair: sum(map(abs, pair))):
        scales = (given * (1 + np.array(steps) * 2.0**-23)).astype(np.float32)
        if not are_scales(scales).all():
            continue
        one, two = (QParams(s, q.zero_point, q.dtype) for s, q in zip(scales, (a, b), strict=True))
        if np.array_equal(binary("add", left[hard], right[hard], one, two, y, bounds), wanted[hard]):
            wrong = binary("add", left, right, one, two, y, bounds) != wanted
            if not wrong.any():
                return one, two
            hard |= wrong
    return None


def global_multiplier(pixels: int, xq: QParams, yq: QParams) -> float:
    """Return ``x_scale / (y_scale * pixels)``. Return 0 if this number is subnormal, because a device may
    flush it; every result is then y_zp."""
    with np.errstate(over="ignore", under="ignore"):
        m = np.float32(xq.scale) / np.float32(np.float32(yq.scale) * np.float32(pixels))
    if not np.isfinite(m):
        raise ArgumentError(
            f"global_avg_pool2d: x_scale / (y_scale * {pixels}) is {m} as a float32; check {xq} and {yq}."
        )
    return float(m) if m >= SMALLEST_SCALE else 0.0


def offset_of_mean(pixels: int, xq: QParams, yq: QParams, total: bool = False) -> tuple[float, float]:
    """Return (m, offset) of LiteRT's mean ``round_half_even(sum(x_q) * m + offset)``, each step rounded
    to float32:

        m = (x_scale / y_scale) * (1 / pixels)
        offset = y_zp - (x_zp * pixels) * m

    *total*: for a sum instead of a mean, ``m = x_scale / y_scale``. Return (0, y_zp) if m is subnormal."""
    with np.errstate(over="ignore", under="ignore"):
        m = np.float32(xq.scale) / np.float32(yq.scale)
        m = m if total else m * (np.float32(1) / np.float32(pixels))
        offset = np.float32(yq.zero_point) - np.float32(xq.zero_point * pixels) * m
    if not np.isfinite(offset):
        raise ArgumentError(f"global_avg_pool2d: the offset is {offset}; check {xq} and {yq}.")
    return (float(m), float(offset)) if m >= SMALLEST_SCALE else (0.0, float(yq.zero_point))
