"""Quantize and dequantize per tensor on the device: ONNX QuantizeLinear and DequantizeLinear, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..layout.pack import activation_layouts
from ..numerics.qparams import QParams
from ..numerics.stored import signed_zero_point
from ..probe import selftest
from ..runtime.device import Device, default_device
from ..runtime.tensor import CONTIGUOUS, Tensor, extent_of
from ..shader.catalog import catalog


def quantize(
    x: npt.ArrayLike | Tensor, qparams: QParams, *, device: Device | None = None, layout: str | None = None
) -> Any:
    """``saturate(round_half_even(x / scale) + zero_point)``.

    x: float32 of any shape, a NumPy array (the result is one too) or a Tensor (the result is a Tensor in
    *layout*: kPackedInt8_4W4C for four dims, else kPackedInt8_4H4W, unless given). The division is rounded
    correctly on every device. +-Inf saturates, NaN gives the lower bound, -0.0 is 0.
    https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html

    Raises DTypeError where x is not float32.

    >>> quantize(np.array([0.25, 0.75, 1e9], np.float32), QParams(0.5))
    array([  0,   2, 127], dtype=int8)
    """
    if isinstance(x, Tensor):
        return quantize_tensor(x, qparams, layout)
    return quantize_tensor(_from_numpy("quantize", x, device, ("float32",)), qparams, layout).numpy()


def dequantize(
    x: npt.ArrayLike | Tensor, qparams: QParams | None = None, *, device: Device | None = None
) -> Any:
    """``(x - zero_point) * scale`` in float32.

    x: int8 or uint8 as *qparams* say, a NumPy array or a Tensor; a Tensor's own qparams are taken where none
    are given. https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html

    >>> dequantize(np.array([-2, 0, 3], np.int8), QParams(0.5, 1))
    array([-1.5, -0.5,  1. ], dtype=float32)
    """
    if isinstance(x, Tensor):
        return dequantize_tensor(x, qparams)
    return dequantize_tensor(_from_numpy("dequantize", x, device, ("int8", "uint8")), qparams).numpy()


def _from_numpy(op: str, x: npt.ArrayLike, device: Device | None, allowed: tuple[str, ...]) -> Tensor:
    data = np.asarray(x)
    if data.dtype.name not in allowed:
        raise DTypeError(f"{op}: x has dtype {data.dtype}; it must be {' or '.join(allowed)}")
    return Tensor.from_numpy(data, device or default_device())


def layout_number(name: str) -> int:
    """A layout's number in the shaders' ``layout/any.glslh``."""
    return next(i for i, one in enumerate(activation_layouts()) if one.name == name)


def quantize_tensor(x: Tensor, qparams: QParams, layout: str | None = None) -> Tensor:
    """A float32 Tensor as 8-bit Tensor in the given or default layout."""
    if x.dtype != "float32":
        raise DTypeError(f"quantize: x has dtype {x.dtype}; it must be float32")
    y = Tensor(x.device, x.shape, qparams.dtype, layout, qparams)
    if x.size == 0:
        return y
    program = x.device.program(catalog().find("quantize_q8ta__word"), {"LAYOUT": layout_number(y.layout)})
    n, c, h, w = extent_of(x.shape, y.layout)
    push: dict[str, int | float] = {
        "words": y.nbytes // 4, "n": n, "c": c, "h": h, "w": w, "scale": qparams.scale,
        "zero_point": signed_zero_point(qparams)
    }  # fmt: skip
    with x.device.operation() as recording:
        recording.dispatch(program, [x.buffer, y.buffer], push)
    return y


def dequantize_tensor(x: Tensor, qparams: QParams | None = None) -> Tensor:
    """An 8-bit Tensor as float32 Tensor."""
    q = qparams or x.qparams
    if q is None:
        raise ArgumentError("dequantize: x carries no qparams; give them")
    if x.dtype != q.dtype:
        raise DTypeError(
            f"dequantize: x has dtype {x.dtype} and the qparams are for {q.dtype}; make them the same"
        )
    y = Tensor(x.device, x.shape, "float32", CONTIGUOUS)
    if x.size == 0:
        return y
    constants = {"LAYOUT": layout_number(x.layout), "SOFT_FLOAT": selftest.report(x.device).soft_float}
    program = x.device.program(catalog().find("dequantize_q8ta__element"), constants)
    n, c, h, w = x.extent
    push: dict[str, int | float] = {
        "elements": x.size, "n": n, "c": c, "h": h, "w": w, "scale": q.scale,
        "zero_point": signed_zero_point(q)
    }  # fmt: skip
    with x.device.operation() as recording:
        recording.dispatch(program, [x.buffer, y.buffer], push)
    return y
