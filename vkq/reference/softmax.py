"""The exact answer of softmax on 8-bit data in NumPy: sums of integers, so that no order of addition can
change a bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.numerics.qparams import QParams
from vkq.numerics.quantize import quantize
from vkq.numerics.tables import exponentials

Array = npt.NDArray[Any]


def softmax(x: Array, xq: QParams, axis: int = -1, yq: QParams | None = None) -> Array:
    """``exp(x - max) / sum`` along an axis: float32, or quantized to yq.

    ``e = exponentials(x_scale)[max(x_q) - x_q]`` (integers), ``s = float32(sum(e))`` of the exact sum,
    ``y = float32(e) * (1 / s)``, each step rounded to float32; then QuantizeLinear where yq is given.

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
