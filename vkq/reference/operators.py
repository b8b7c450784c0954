"""The exact answer of the operators around the matrix products, in NumPy: element-wise, tables, pooling,
resize, softmax.

Every formula below is one order of float32 steps, each rounded to nearest even; where ONNX Runtime has the
operator, it is the order of its CPU provider on x86-64, and the result is the same byte for byte. Arrays are
int8 or uint8 as their QParams say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vkq.errors import ArgumentError, DTypeError
from vkq.numerics.qparams import SMALLEST_SCALE, QParams
from vkq.problem.window import Window
from vkq.reference.layers import Activation, activation_bounds, dequantize, quantize, requantize

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Function = Callable[[npt.NDArray[np.float64]], npt.ArrayLike]
BinaryOp = Literal["add", "sub", "mul"]
BINARY_OPS: tuple[BinaryOp, ...] = ("add", "sub", "mul")


def fused_multiply_add(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> Float32:
    """``float32(a * b + c)`` of float32 numbers, rounded once.

    The product is exact in float64. The sum is rounded to odd there, so that the rounding to float32 sees the
    whole sum.

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
        towards = np.where(error > 0, np.inf, -np.inf)
        return np.asarray(np.where(inexact, np.nextafter(total, towards), total).astype(np.float32))


def scales_of_sum(
    a: QParams, b: QParams, y: QParams, subtract: bool = False
) -> tuple[np.float32, np.float32, np.float32]:
    """(ra, rb, offset) of ``y_q = round(a_q * ra + b_q * rb + offset)``, in ONNX Runtime's order.

    ra = a_scale / y_scale, rb = +-b_scale / y_scale, offset = y_zp - fma(ra, a_zp, rb * b_zp).
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        ra, rb = np.float32(a.scale) / np.float32(y.scale), np.float32(b.scale) / np.float32(y.scale)
        rb = np.float32(-rb) if subtract else rb
        zero = fused_multiply_add(ra, np.float32(a.zero_point), np.float32(rb * np.float32(b.zero_point)))
        return ra, rb, np.float32(np.float32(y.zero_point) - zero)


def scale_of_product(a: QParams, b: QParams, y: QParams) -> float:
    """``(a_scale * b_scale) / y_scale``, each step rounded to float32."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(np.float32(a.scale) * np.float32(b.scale)) / np.float32(y.scale))


def binary(
    op: BinaryOp, a: Array, b: Array, aq: QParams, bq: QParams, yq: QParams, activation: Activation = None
) -> Array:
    """Add, subtract or multiply two quantized arrays with NumPy's broadcasting, as ONNX Runtime's QLinearAdd
    and QLinearMul.

        add, sub    y_q = saturate(round_half_even(fma(a_q, ra, fma(b_q, rb, offset))))          see
        `scales_of_sum` mul         y_q = saturate(round_half_even(float32((a_q - a_zp) * (b_q - b_zp)) * r +
        y_zp))   r: `scale_of_product`

    The zero point is added before rounding, so a tie goes to the even y_q. Where a alone is broadcast along
    the innermost axis of the result, the operands of add swap their roles (`swaps`), as they do in ONNX
    Runtime.

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
    """Whether ONNX Runtime takes a as the scalar of its inner loop: a is 1 along the innermost axis that is
    longer than 1."""
    if not a_shape or not b_shape:
        return not a_shape or a_shape[-1] == 1
    for a, b in zip(reversed(a_shape), reversed(b_shape), strict=False):
        if max(a, b) != 1:
            return a == 1
    return True


def binary_table(op: BinaryOp, a: QParams, b: QParams, y: QParams, activation: Activation = None) -> Array:
    """Every result of `binary` in its unswapped form: (256, 256), row b_q - b_qmin, column a_q - a_qmin."""
    a_all, b_all = (np.arange(q.qmin, q.qmax + 1).astype(q.dtype) for q in (a, b))
    columns, rows = np.meshgrid(a_all, b_all)
    return binary(op, columns, rows, a, b, y, activation)


UNARY: dict[str, Function] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "abs": np.abs,
    "neg": lambda x: -x,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-np.clip(x, -700.0, 700.0))),
    "tanh": np.tanh,
    "exp": lambda x: np.exp(np.minimum(x, 700.0)),
    "silu": lambda x: x / (1.0 + np.exp(-np.clip(x, -700.0, 700.0))),
    "hardsigmoid": lambda x: np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "hardswish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "gelu": lambda x: np.array([0.5 * v * (1.0 + math.erf(v / math.sqrt(2.0))) for v in x.tolist()]),
}


def leaky_relu(alpha: float) -> Function:
    """The function ``x if x >= 0 else alpha * x``, for `table_of` and `unary`; alpha is rounded to float32,
    as in an ONNX file.

    >>> leaky_relu(0.25)(np.array([-2.0, 3.0]))
    array([-0.5,  3. ])
    """
    slope = float(np.float32(alpha))
    return lambda x: np.where(x >= 0, x, slope * x)


def clamp(low: float, high: float) -> Function:
    """The function ``min(max(x, low), high)``, for `table_of` and `unary`. Raises ArgumentError where not low
    <= high.

    >>> clamp(-1.0, 2.5)(np.array([-2.0, 1.0, 3.0]))
    array([-1. ,  1. ,  2.5])
    """
    if not low <= high:
        raise ArgumentError(
            f"clamp: the bounds are {low} and {high}; the first must not be above the second."
        )
    return lambda x: np.clip(x, low, high)


def table_of(function: str | Function, x: QParams, y: QParams) -> Array:
    """The 256 results of ``quantize(function(dequantize(x_q)))``: entry i is that of the number ``x.qmin +
    i``.

    function: a name of `UNARY`, or a callable that takes a float64 array of 256 real numbers and returns as
    many. Its values are rounded to float32, then quantized as ONNX QuantizeLinear does: the three ONNX
    operators one after the other, with the function itself correctly rounded. Raises ArgumentError for an
    unknown name or a result of another shape.

    >>> table_of("relu", QParams(0.5), QParams(0.5, -128))[[0, 128, 130, 255]]
    array([-128, -128, -126,   -1], dtype=int8)
    """
    if isinstance(function, str):
        if function not in UNARY:
            raise ArgumentError(
                f"table_of: there is no function {function!r}; there are {', '.join(UNARY)}, or give a"
                " callable."
            )
        function = UNARY[function]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        real = dequantize(np.arange(x.qmin, x.qmax + 1).astype(x.dtype), x).astype(np.float64)
        values = np.asarray(function(real))
        if values.shape != (256,) or values.dtype.kind not in "fiu":
            raise ArgumentError(
                f"table_of: the function gave {values.dtype} {values.shape}; it must give 256 real numbers."
            )
        return quantize(values.astype(np.float32), y)


def lookup(x: Array, table: npt.ArrayLike) -> Array:
    """``table[x - qmin]``, element by element; table: 256 int8 or uint8, the entry of -128 (or 0) first.

    >>> lookup(np.array([-128, 127], np.int8), np.arange(256).astype(np.uint8))
    array([  0, 255], dtype=uint8)
    """
    entries = np.asarray(table)
    if entries.shape != (256,) or entries.dtype not in (np.int8, np.uint8):
        raise ArgumentError(
            f"lookup: table is {entries.dtype} {entries.shape}; it must be 256 int8 or uint8 numbers."
        )
    if x.dtype not in (np.int8, np.uint8):
        raise DTypeError(f"lookup: x has dtype {x.dtype}; it must be int8 or uint8.")
    return np.asarray(entries[x.astype(np.int32) + (128 if x.dtype == np.int8 else 0)])


def max_pool2d(x: Array, window: Window) -> Array:
    """The largest number under each window; padding never wins (a window that sees none of the image gives
    the type's least).

    x: (N, C, H, W), int8 or uint8. As ONNX MaxPool.
    """
    padded = _padded(x, window, np.iinfo(x.dtype).min)
    return np.asarray(np.max([padded[tap] for tap in _taps(window)], axis=0))


def avg_pool2d(x: Array, window: Window, xq: QParams, yq: QParams, count_include_pad: bool) -> Array:
    """The mean under each window, as ONNX Runtime's QLinearAveragePool.

    ``y_q = saturate(round_half_even((sum / count) / y_scale + y_zp))``, each step rounded to float32, where
    sum adds ``x_scale * (x_q - x_zp)`` in row-major order and count is the number of elements inside the
    image, or the kernel's.
    """
    real = _padded(dequantize(x, xq), window, np.float32(0))
    total = np.zeros(window.y_shape, np.float32)
    for tap in _taps(window):
        total = total + real[tap]
    inside = _padded(np.ones(x.shape, np.float32), window, np.float32(0))
    counts = sum(inside[tap] for tap in _taps(window))
    mean = total / (np.float32(window.taps) if count_include_pad else counts)
    with np.errstate(over="ignore"):
        value = np.rint(mean / np.float32(yq.scale) + np.float32(yq.zero_point))
    return np.asarray(np.clip(value, yq.qmin, yq.qmax).astype(np.int32).astype(yq.dtype))


def global_avg_pool(x: Array, xq: QParams, yq: QParams) -> Array:
    """The mean of each channel, (N, C, 1, 1), as ONNX Runtime's QLinearGlobalAveragePool.

    ``y_q = saturate(round_half_even(float32(acc) * m) + y_zp)`` with ``acc = sum(x_q - x_zp)`` exact and
    ``m = x_scale / (y_scale * float32(H * W))``, each step rounded to float32.
    """
    acc = x.astype(np.int64).sum(axis=(2, 3), keepdims=True) - xq.zero_point * x.shape[2] * x.shape[3]
    return requantize(acc, global_multiplier(x.shape[2] * x.shape[3], xq, yq), yq)


def global_multiplier(pixels: int, xq: QParams, yq: QParams) -> float:
    """``x_scale / (y_scale * pixels)``; zero where it is subnormal, which a device may flush (every result is
    y_zp then)."""
    with np.errstate(over="ignore", under="ignore"):
        m = np.float32(xq.scale) / np.float32(np.float32(yq.scale) * np.float32(pixels))
    if not np.isfinite(m):
        raise ArgumentError(
            f"global_avg_pool2d: x_scale / (y_scale * {pixels}) is {m} as a float32; check {xq} and {yq}."
        )
    return float(m) if m >= SMALLEST_SCALE else 0.0


def _padded(x: Array, window: Window, fill: Any) -> Array:
    """The image with all that a window may touch around it."""
    _, _, oh, ow = window.y_shape
    after = [max(0, (out - 1) * step + reach - before - size) for out, step, reach, before, size in zip(
        (oh, ow), window.stride, window.reach, window.padding[:2], x.shape[2:], strict=True)]  # fmt: skip
    margins = ((0, 0), (0, 0), (window.padding[0], after[0]), (window.padding[1], after[1]))
    return np.pad(x, margins, constant_values=fill)


def _taps(window: Window) -> list[tuple[slice, ...]]:
    """For each kernel element in row-major order, what it sees of the padded image."""
    _, _, oh, ow = window.y_shape
    found: list[tuple[slice, ...]] = []
    for i, j in np.ndindex(*window.kernel):
        row, column = i * window.dilation[0], j * window.dilation[1]
        rows = slice(row, row + (oh - 1) * window.stride[0] + 1, window.stride[0])
        found.append(
            (
                slice(None),
                slice(None),
                rows,
                slice(column, column + (ow - 1) * window.stride[1] + 1, window.stride[1]),
            )
        )
    return found
