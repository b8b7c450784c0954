"""Quantization and dequantization in NumPy, with the bits of ONNX QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.errors import DTypeError
from vkq.numerics.qparams import QParams

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def quantize(x: npt.ArrayLike, q: QParams) -> Array:
    """Return ``saturate(round_half_even(x / scale) + zero_point)``, of dtype ``q.dtype`` and the shape of x.

    x: floats, which are rounded to float32 before the float32 division. Infinities saturate, NaN becomes
    ``q.qmin``, -0.0 becomes the zero point. Raises DTypeError if x has no float dtype. The formula is that
    of ONNX QuantizeLinear; NaN is treated as in ONNX Runtime's CPU provider.

    >>> quantize([0.25, 0.75, 1e9, float("nan")], QParams(0.5))
    array([   0,    2,  127, -128], dtype=int8)
    """
    values = np.asarray(x)
    if values.dtype.kind != "f":
        raise DTypeError(f"quantize: x has dtype {values.dtype}; it must be of a float type.")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        rounded = np.rint(values.astype(np.float32) / np.float32(q.scale))
    low, high = np.float32(q.qmin - q.zero_point), np.float32(q.qmax - q.zero_point)
    clamped = np.clip(np.where(np.isnan(rounded), low, rounded), low, high)
    return np.asarray(clamped.astype(np.int32) + q.zero_point).astype(q.dtype)


def dequantize(xq: Array, q: QParams) -> Float32:
    """Return ``float32(xq - zero_point) * scale`` in float32, like ONNX DequantizeLinear; xq has ``q.dtype``.

    >>> dequantize(np.array([-2, 0, 3], np.int8), QParams(0.5, 1))
    array([-1.5, -0.5,  1. ], dtype=float32)
    """
    check_dtype("dequantize", "xq", xq, q)
    return np.asarray(
        (xq.astype(np.int32) - q.zero_point).astype(np.float32) * np.float32(q.scale), np.float32
    )


def check_dtype(op: str, what: str, values: Array, q: QParams) -> None:
    """Raise DTypeError unless the array *values* has the dtype of its parameters *q*. *op*, *what*: the
    names of the operator and the array in the message."""
    if values.dtype.name != q.dtype:
        raise DTypeError(
            f"{op}: {what} has dtype {values.dtype} but its QParams are for {q.dtype}; make them the same."
        )
