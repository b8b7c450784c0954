"""Resizing of 8-bit images: nearest and bilinear, as ONNX Resize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..probe import selftest
from ..problem.resize import Coordinates, NearestMode, Resize, ResizeMode, Rounding
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from ..shader.spec import Value
from . import operand
from .operand import Operand
from .quantize import layout_number
from .repack import to_layout


def resize(
    x: Operand,
    size: Sequence[int] | None = None,
    scale: float | Sequence[float] | None = None,
    *,
    mode: ResizeMode = "nearest",
    coordinates: Coordinates = "half_pixel",
    nearest_mode: NearestMode = "round_prefer_floor",
    rounding: Rounding = "truncate",
    device: Device | None = None,
) -> Any:
    """An image of another size, of the type and the qparams of x.

    x: (N, C, H, W), int8 or uint8, a NumPy array or a Tensor (the result is the same kind). Give either size
    (OH, OW) or scale, one number or (vertical, horizontal): then ``OH = floor(scale * H)``. mode: "nearest"
    or "linear". coordinates: half_pixel, pytorch_half_pixel, asymmetric, align_corners. nearest_mode:
    round_prefer_floor, round_prefer_ceil, floor, ceil. https://onnx.ai/onnx/operators/onnx__Resize.html

    linear: ``(dy2 dx2) x11 + (dy2 dx1) x12 + (dy1 dx2) x21 + (dy1 dx1) x22`` in float32, added from the left;
    the fraction is cut off, which is what ONNX Runtime does with 8-bit data (both modes are equal to it byte
    for byte), or with rounding="even" rounded half to even, which is nearer to the real result.

    Raises ArgumentError for another option, and where not exactly one of size and scale is given.

    >>> resize(np.array([[[[1, 2]]]], np.int8), scale=2).tolist()
    [[[[1, 1, 2, 2], [1, 1, 2, 2]]]]
    """
    tensor = operand.take("resize", "x", x, operand.device_of("resize", [x], device))
    how = Resize.of(tensor.shape, size, scale, mode, coordinates, nearest_mode, rounding)
    return operand.give(resize_tensor(tensor, how), x)


def resize_tensor(tensor: Tensor, how: Resize) -> Tensor:
    """The operation on a Tensor."""
    if how.y_shape == how.x_shape:
        return tensor
    tensor = to_layout(tensor, operand.image_layout(tensor))
    y = Tensor(tensor.device, how.y_shape, tensor.dtype, tensor.layout, tensor.qparams)
    if y.size:
        table = y.device.constant(("resize", how), lambda: _table(how))
        constants: dict[str, Value] = {"LAYOUT": layout_number(y.layout)}
        if how.mode == "linear":
            constants |= {"EVEN": how.rounding == "even", "SOFT_FLOAT": selftest.report(y.device).soft_float}
        n, c, h, w = tensor.shape
        push: dict[str, int | float] = {
            "words": y.nbytes // 4, "n": n, "c": c, "x_h": h, "x_w": w, "y_h": how.size[0],
            "y_w": how.size[1], "shift": operand.shift(y.dtype),
        }  # fmt: skip
        program = y.device.program(catalog().find("resize_q8__word", mode=how.mode), constants)
        operand.dispatch(program, y.device, [tensor.buffer, table, y.buffer], push)
    return y


def _table(how: Resize) -> npt.NDArray[np.int32]:
    """(OH + OW, 4): first, second, and the distances' bits of each row, then of each column."""
    parts = []
    for axis in (0, 1):
        part = np.zeros((how.size[axis], 4), np.int32)
        if how.mode == "nearest":
            part[:, 0] = how.nearest(axis)
        else:
            first, second, d1, d2 = how.linear(axis)
            part[:, 0], part[:, 1], part[:, 2], part[:, 3] = (
                first,
                second,
                d1.view(np.int32),
                d2.view(np.int32),
            )
        parts.append(part)
    return np.concatenate(parts)
