"""Quantize and dequantize per tensor on the device: ONNX QuantizeLinear and DequantizeLinear, exactly."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError, DTypeError
from ..kernels import quantize as kernel
from ..layout.extent import BYTES
from ..numerics.qparams import QParams
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from . import operand


@checked
def quantize(
    x: npt.ArrayLike | Tensor,
    qparams: QParams,
    *,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
    layout: str | None = None,
) -> Any:
    """Return ``saturate(round_half_even(x / scale) + zero_point)``.

    Args:
        x: float32 of any shape, a NumPy array or a Tensor. The result is of the same class.
        layout: the layout of a Tensor, by default kPackedInt8_4W4C for four dims, else kPackedInt8_4H4W.

    The division is rounded correctly on every device. +-Inf saturates, NaN gives the lower bound, and -0.0
    becomes 0. See https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html

    Raises DTypeError if x is not float32.

    >>> import numpy as np
    >>> quantize(np.array([0.25, 0.75, 1e9], np.float32), QParams(0.5))
    array([  0,   2, 127], dtype=int8)
    """
    return operand.apply("quantize", kernel.quantized, {"x": x}, (qparams, layout), device, out, ("float32",))


@checked
def dequantize(
    x: npt.ArrayLike | Tensor,
    qparams: QParams | None = None,
    *,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``(x - zero_point) * scale`` in float32.

    Args:
        x: a NumPy array or a Tensor, with the dtype of *qparams*.
        qparams: by default a Tensor's own.

    See https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html

    >>> import numpy as np
    >>> dequantize(np.array([-2, 0, 3], np.int8), QParams(0.5, 1))
    array([-1.5, -0.5,  1. ], dtype=float32)
    """
    return operand.apply("dequantize", dequantized, {"x": x}, (qparams,), device, out, BYTES)


def dequantized(b: Builder, x: Value, qparams: QParams | None) -> Value:
    """Add `dequantize` to a plan. If *qparams* is None, x's own are used."""
    q = qparams or x.spec.qparams
    if q is None:
        raise ArgumentError("dequantize: x carries no qparams; give them")
    if x.spec.dtype != q.dtype:
        raise DTypeError(
            f"dequantize: x has dtype {x.spec.dtype} and the qparams are for {q.dtype}; make them the same"
        )
    return kernel.dequantized(b, x, q)
