"""Softmax of 8-bit data along the last axis, the channels, or any other axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..kernels.gemm import INVOCATIONS, ceil4
from ..layout.pack import layout
from ..numerics.qparams import QParams
from ..numerics.stored import signed_zero_point
from ..numerics.tables import exponentials, exponentials_onnxruntime
from ..probe import selftest
from ..runtime.device import Device
from ..runtime.tensor import CONTIGUOUS, MATRIX, Tensor
from ..shader.catalog import catalog
from ..shader.spec import Value
from . import operand
from .operand import Operand
from .quantize import layout_number
from .repack import to_layout
from .shape import transpose

CHANNELS, COLUMNS = 1, 3  # axes of a layout's extent along which its words may lie


def softmax(
    x: Operand,
    axis: int = -1,
    y_qparams: QParams | None = None,
    *,
    x_qparams: QParams | None = None,
    onnxruntime: bool = False,
    device: Device | None = None,
) -> Any:
    """``exp(x) / sum(exp(x))`` along an axis.

    x: int8 or uint8, a NumPy array (with x_qparams) or a Tensor; the result is the same kind: float32, or
    8-bit with y_qparams (then it is QuantizeLinear of the float32 result; QParams(1 / 256, -128) uses the
    whole of int8).

    ``e = round(exp(-(max - x_q) * x_scale) * 2**30)`` from a table, ``y = float32(e) * (1 /
    float32(sum(e)))``; the sum is exact in integers and each float32 step rounded, so all devices return the
    same bits. Against the real softmax of n numbers the error of the float32 result is at most ``(n + 2) *
    2**-31 + 4 * 2**-24 * y``.

    onnxruntime: the bytes of ONNX Runtime's com.microsoft.QLinearSoftmax instead, for an 8-bit result: its
    table and its order of float32 additions (`vkq.reference.softmax.softmax_onnxruntime`).

    Raises ArgumentError for missing qparams, for an axis out of range, and for float32 output along an axis
    that is neither the last nor the channels of (N, C, H, W).

    >>> import numpy as np
    >>> softmax(np.array([[20, 0, 20]], np.int8), y_qparams=QParams(1 / 256, -128), x_qparams=QParams(0.1))
    array([[  -8, -112,   -8]], dtype=int8)
    """
    tensor = operand.take("softmax", "x", x, operand.device_of("softmax", [x], device))
    xq = operand.meaning("softmax", "x", tensor, x_qparams)
    axis = operand.normal_axis("softmax", axis, max(len(tensor.shape), 1))
    if onnxruntime and y_qparams is None:
        raise ArgumentError("softmax: onnxruntime=True is for an 8-bit result; give y_qparams")
    return operand.give(softmax_tensor(tensor, axis, xq, y_qparams, onnxruntime), x)


def softmax_tensor(
    x: Tensor, axis: int, xq: QParams, yq: QParams | None, onnxruntime: bool = False
) -> Tensor:
    """The operation on a Tensor; 8-bit results keep the layout of x."""
    last = len(x.shape) - 1

    def rows(x: Tensor, axis: int) -> Tensor:
        return _rows_onnxruntime(x, axis, xq, yq) if onnxruntime and yq else _rows(x, axis, xq, yq)

    if len(x.shape) == 4 and axis == 1:
        y = rows(to_layout(x, operand.image_layout(x)), CHANNELS)
    elif axis == max(last, 0):
        y = rows(
            x if operand.folded(x) and layout(x.layout).lane.dim == COLUMNS else to_layout(x, MATRIX), COLUMNS
        )
    elif yq is None:
        raise ArgumentError(
            f"softmax: axis is {axis} of shape {x.shape} with float32 output; give y_qparams, or transpose x"
            " first"
        )
    else:
        order = list(range(len(x.shape)))
        order[axis], order[last] = last, axis
        y = transpose(softmax_tensor(transpose(x, order), last, xq, yq, onnxruntime), order)
    return y if yq is None else to_layout(y, x.layout)


def _rows(x: Tensor, axis: int, xq: QParams, yq: QParams | None) -> Tensor:
    """Softmax along an axis of the extent, along which the words of x lie."""
    y = (
        Tensor(x.device, x.shape, "float32", CONTIGUOUS)
        if yq is None
        else Tensor(x.device, x.shape, yq.dtype, x.layout, yq)
    )
    if x.size == 0:
        return y
    threads = 1
    while threads < min(INVOCATIONS, ceil4(x.extent[axis])):
        threads *= 2
    constants: dict[str, Value] = {
        "LAYOUT": layout_number(x.layout), "LOCAL_X": INVOCATIONS, "THREADS": threads, "AXIS": axis,
        "SOFT_FLOAT": selftest.report(x.device).soft_float,
    }  # fmt: skip
    n, c, h, w = x.extent
    push: dict[str, int | float] = {
        "rows": x.size // x.extent[axis], "n": n, "c": c, "h": h, "w": w,
        "y_scale": yq.scale if yq else 1.0, "y_zero": signed_zero_point(yq) if yq else 0,
    }  # fmt: skip
    table = x.device.constant(("softmax", xq.scale), lambda: exponentials(xq.scale))
    program = x.device.program(
        catalog().find("softmax_q8__row", out="f32" if yq is None else "q8"), constants
    )
    operand.dispatch(program, x.device, [x.buffer, table, y.buffer], push, 16 * x.size)
    return y


def _rows_onnxruntime(x: Tensor, axis: int, xq: QParams, yq: QParams) -> Tensor:
    """The same with ONNX Runtime's steps."""
    y = Tensor(x.device, x.shape, yq.dtype, x.layout, yq)
    if x.size == 0:
        return y
    constants: dict[str, Value] = {
        "LAYOUT": layout_number(x.layout), "AXIS": axis, "SOFT_FLOAT": selftest.report(x.device).soft_float,
    }  # fmt: skip
    n, c, h, w = x.extent
    length = x.extent[axis]
    push: dict[str, int | float] = {
        "rows": x.size // length, "n": n, "c": c, "h": h, "w": w,
        "steps": float(np.floor(np.float32(1) / np.float32(yq.scale))), "y_zero": signed_zero_point(yq),
    }  # fmt: skip
    key = ("softmax_onnxruntime", xq.scale, length)
    table = x.device.constant(key, lambda: exponentials_onnxruntime(xq.scale, length))
    program = x.device.program(catalog().find("softmax_onnxruntime_q8__row"), constants)
    operand.dispatch(program, x.device, [x.buffer, table, y.buffer], push, 64 * x.size)
    return y
