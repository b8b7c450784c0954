"""The exact oracle of lookups and pooling in NumPy. Element-wise operators and tables are in `vkq.numerics`.

Every formula is a fixed sequence of float32 steps, each rounded to nearest even. For ONNX Runtime's
operators, the steps are those of its CPU provider on x86-64, so results have the same bytes. Arrays are
int8 or uint8, as their QParams state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.errors import ArgumentError, DTypeError
from vkq.numerics.elementwise import global_multiplier, offset_of_mean
from vkq.numerics.qparams import QParams
from vkq.numerics.quantize import dequantize
from vkq.numerics.requantize import requantize
from vkq.numerics.tables import fixed_point, mean_multiplier
from vkq.problem.window import Window

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def lookup(x: Array, table: npt.ArrayLike) -> Array:
    """Return ``table[x - qmin]`` for each element of x. *table*: 256 int8 or uint8 numbers, the first for
    the smallest value of x's type.

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
    """Return the maximum of each window, as ONNX MaxPool does. x: (N, C, H, W), integers or floats.

    Padding is never the maximum. A window that covers no part of the image gives the smallest value of the
    type.
    """
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    image = padded(x, window, least)
    return np.asarray(np.max([image[tap] for tap in taps(window)], axis=0))


def avg_pool2d(x: Array, window: Window, xq: QParams, yq: QParams, count_include_pad: bool) -> Array:
    """Return the mean of each window, as ONNX Runtime's QLinearAveragePool does.

    ``y_q = saturate(round_half_even((sum / count) / y_scale + y_zp))``, each step rounded to float32.

    - sum adds ``x_scale * (x_q - x_zp)`` in row-major order.
    - count is the number of the window's elements inside the image or, with *count_include_pad*, the kernel's
      size.
    - If the kernel has the size of the image, the formula is that of `global_avg_pool`.
    """
    if window.whole:
        return global_avg_pool(x, xq, yq)
    real = padded(dequantize(x, xq), window, np.float32(0))
    total = np.zeros(window.y_shape, np.float32)
    for tap in taps(window):
        total = total + real[tap]
    inside = padded(np.ones(x.shape, np.float32), window, np.float32(0))
    counts = sum(inside[tap] for tap in taps(window))
    mean = total / (np.float32(window.taps) if count_include_pad else counts)
    with np.errstate(over="ignore"):
        value = np.rint(mean / np.float32(yq.scale) + np.float32(yq.zero_point))
    return np.asarray(np.clip(value, yq.qmin, yq.qmax).astype(np.int32).astype(yq.dtype))


def global_avg_pool(x: Array, xq: QParams, yq: QParams, litert: str = "") -> Array:
    """Return the mean of each channel, (N, C, 1, 1), as ONNX Runtime's QLinearGlobalAveragePool does.

    ``y_q = saturate(round_half_even(float32(acc) * m) + y_zp)`` with the exact ``acc = sum(x_q - x_zp)``
    and ``m = x_scale / (y_scale * float32(H * W))``, each step rounded to float32.

    *litert*: "mean" or "sum": return LiteRT's MEAN or SUM instead,
    ``saturate(round_half_even(float32(sum(x_q)) * m + offset))`` with m and offset of
    `vkq.numerics.elementwise.offset_of_mean`.
    """
    pixels, total = x.shape[2] * x.shape[3], x.astype(np.int64).sum(axis=(2, 3), keepdims=True)
    if not litert:
        return requantize(total - xq.zero_point * pixels, global_multiplier(pixels, xq, yq), yq)
    m, offset = offset_of_mean(pixels, xq, yq, litert == "sum")
    value = np.rint(total.astype(np.float32) * np.float32(m) + np.float32(offset))
    return np.asarray(np.clip(value, yq.qmin, yq.qmax).astype(np.int32).astype(yq.dtype))


def padded(x: Array, window: Window, fill: Any) -> Array:
    """Return the image with padding of the value *fill* that contains all windows."""
    _, _, oh, ow = window.y_shape
    after = [max(0, (out - 1) * step + reach - before - size) for out, step, reach, before, size in zip(
        (oh, ow), window.stride, window.reach, window.padding[:2], x.shape[2:], strict=True)]  # fmt: skip
    margins = ((0, 0), (0, 0), (window.padding[0], after[0]), (window.padding[1], after[1]))
    return np.pad(x, margins, constant_values=fill)


def taps(window: Window) -> list[tuple[slice, ...]]:
    """Return a tuple of slices for each kernel element, in row-major order: the pixels of the padded image
    that the element reads in all windows."""
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


def mean_of_table(x: Array, table: npt.NDArray[np.float32], yq: QParams) -> Array:
    """Return the mean over the pixels of each channel of ``table[x - qmin]``, (N, C, 1, 1), quantized to yq.

    table: float32, (256,) or (C, 256). Its entries are rounded to fixed point, in steps of 2**-29 to 2**-28
    of the largest entry, so that their sum is exact. With ``m`` from `vkq.numerics.tables.mean_multiplier`,
    ``y_q = saturate(round_half_even(float32(sum) * m) + y_zp)``.
    """
    numbers, exponent = fixed_point(table)
    which = np.arange(len(numbers) if table.ndim == 2 else 1).reshape(1, -1, 1, 1)
    index = x.astype(np.int32) - int(np.iinfo(x.dtype).min)
    total = numbers.reshape(-1, 256)[which, index].astype(np.int64).sum(axis=(2, 3), keepdims=True)
    return requantize(total, mean_multiplier(exponent, x.shape[2] * x.shape[3], yq), yq)
