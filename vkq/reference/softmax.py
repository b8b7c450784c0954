"""The exact oracle of softmax on 8-bit data in NumPy. `softmax` adds integers, so the order of additions
changes no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.numerics.qparams import QParams
from vkq.numerics.quantize import quantize
from vkq.numerics.tables import exponentials, exponentials_litert, exponentials_onnxruntime

Array = npt.NDArray[Any]


def softmax(x: Array, xq: QParams, axis: int = -1, yq: QParams | None = None) -> Array:
    """Return ``exp(x - max) / sum`` along an axis, as float32; or quantized to yq if given.

        e = exponentials(x_scale)[max(x_q) - x_q], integers
        y = float32(e) * (1 / float32(sum(e)))

    The sum is exact, and each float32 step is rounded. With yq, QuantizeLinear follows.

    >>> [round(float(v), 3) for v in softmax(np.array([3, 3, 1], np.int8), QParams(0.5))]
    [0.422, 0.422, 0.155]
    """
    if x.size == 0:
        return np.zeros(x.shape, np.float32 if yq is None else yq.dtype)
    wide = x.astype(np.int32)
    e = exponentials(xq.scale)[wide.max(axis=axis, keepdims=True) - wide]
    inverse = np.float32(1) / e.astype(np.int64).sum(axis=axis, keepdims=True).astype(np.float32)
    y = np.asarray(e.astype(np.float32) * inverse, np.float32)
    return y if yq is None else quantize(y, yq)


def softmax_onnxruntime(x: Array, xq: QParams, axis: int, yq: QParams) -> Array:
    """Return softmax with the bytes of ONNX Runtime's com.microsoft.QLinearSoftmax (its generic kernel).

        e = exponentials_onnxruntime(x_scale, n)[255 - max + x_q]
        s = float32 sum of e, from the first to the last element
        y_q = saturate(round_half_even((e * floor(1 / y_scale)) / s) + y_zp)

    Each step is rounded to float32.
    """
    if x.size == 0:
        return np.zeros(x.shape, yq.dtype)
    rows = np.moveaxis(x, axis, -1).astype(np.int32)
    e = exponentials_onnxruntime(xq.scale, rows.shape[-1])[255 - rows.max(axis=-1, keepdims=True) + rows]
    total = np.cumsum(e, axis=-1, dtype=np.float32)[..., -1:]
    steps = np.floor(np.float32(1) / np.float32(yq.scale))
    y = np.rint(e * steps / total).astype(np.int64) + yq.zero_point
    return np.moveaxis(np.clip(y, yq.qmin, yq.qmax).astype(yq.dtype), -1, axis)


def softmax_litert(x: Array, xq: QParams, axis: int, yq: QParams) -> Array:
    """Return softmax with the bytes of LiteRT's own 8-bit kernel.

        e = exponentials_litert(x_scale)[255 - max + x_q]
        s = float32 sum of e, from the first to the last element
        y_q = saturate(round_half_even(e * (1 / (s * y_scale))) + y_zp)

    Each step is rounded to float32.
    """
    if x.size == 0:
        return np.zeros(x.shape, yq.dtype)
    rows = np.moveaxis(x, axis, -1).astype(np.int32)
    e = exponentials_litert(xq.scale)[255 - rows.max(axis=-1, keepdims=True) + rows]
    total = np.cumsum(e, axis=-1, dtype=np.float32)[..., -1:]
    inverse = np.float32(1) / (total * np.float32(yq.scale))
    y = np.rint(e * inverse).astype(np.int64) + yq.zero_point
    return np.moveaxis(np.clip(y, yq.qmin, yq.qmax).astype(yq.dtype), -1, axis)
