"""Resizing of 8-bit images: nearest and bilinear, as ONNX Resize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..kernels.quantize import steps
from ..kernels.repack import repacked
from ..layout.extent import PIXELS, Spec
from ..numerics.qparams import QParams
from ..numerics.stored import shift, signed_zero_point
from ..problem.resize import Coordinates, NearestMode, Resize, ResizeMode, Rounding
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from . import operand
from .operand import Operand


@checked
def resize(
    x: Operand,
    size: Sequence[int] | None = None,
    scale: float | Sequence[float] | None = None,
    *,
    mode: ResizeMode = "nearest",
    coordinates: Coordinates = "half_pixel",
    nearest_mode: NearestMode = "round_prefer_floor",
    rounding: Rounding = "truncate",
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return an image resized, with the type and the qparams of x.

    Args:
        x: (N, C, H, W), int8 or uint8, a NumPy array or a Tensor. The result is of the same class.
        size: (OH, OW). Give either size or scale.
        scale: a number or (vertical, horizontal); ``OH = floor(scale * H)``.
        mode: "nearest" or "linear".
        coordinates: half_pixel, pytorch_half_pixel, asymmetric or align_corners, as in ONNX Resize
            (https://onnx.ai/onnx/operators/onnx__Resize.html).
        nearest_mode: round_prefer_floor, round_prefer_ceil, floor or ceil.

    linear: ``(dy2 dx2) x11 + (dy2 dx1) x12 + (dy1 dx2) x21 + (dy1 dx1) x22`` in float32, added from the
    left. x11 to x22 are the neighbouring elements (row 1 or 2, column 1 or 2); dy1, dy2, dx1 and dx2 are
    the distances from these rows and columns.

    rounding decides the result's fraction:

    - "truncate" (default): it is dropped, as in ONNX Runtime for 8-bit data. The modes "nearest" and
      "linear" then equal ONNX Runtime byte for byte.
    - "even": the result is rounded half to even, which is closer to the real result.
    - "fixed": weights are integers in units of 2**-11, and halves are rounded up, as in XNNPACK.
    - "fixed_10": the units are 2**-10, and halves are rounded away from zero, as in LiteRT's own kernel
      of int8.

    Raises ArgumentError for an unknown option, and unless exactly one of size and scale is given.

    >>> resize(np.array([[[[1, 2]]]], np.int8), scale=2).tolist()
    [[[[1, 1, 2, 2], [1, 1, 2, 2]]]]
    """
    options = (size, scale, mode, coordinates, nearest_mode, rounding)
    return operand.apply("resize", resized, {"x": x}, options, device, out)


def resized(
    b: Builder,
    x: Value,
    size: Sequence[int] | None,
    scale: float | Sequence[float] | None,
    mode: ResizeMode,
    coordinates: Coordinates,
    nearest_mode: NearestMode,
    rounding: Rounding,
) -> Value:
    """Add `resize` to a plan."""
    how = Resize.of(x.spec.shape, size, scale, mode, coordinates, nearest_mode, rounding)
    return resized_as(b, x, how)


def resized_as(b: Builder, x: Value, how: Resize, real: tuple[QParams, QParams] | None = None) -> Value:
    """Add a resize of known sizes to a plan. real: dequantize x with the first parameters, interpolate in
    float32, and quantize with the second parameters (`vkq.reference.resize.resize_real`)."""
    if how.y_shape == how.x_shape and (real is None or real[0] == real[1]):
        return x
    x = repacked(b, x, x.spec.image_layout)
    y = b.new(Spec(how.y_shape, x.spec.dtype, x.spec.layout, real[1] if real else x.spec.qparams))
    if y.spec.size:
        table = b.device.constant(("resize", how), 16 * sum(how.size), lambda: _table(how))
        constants: dict[str, Constant] = {}
        if how.mode == "linear":
            constants |= {
                "EVEN": how.rounding == "even", "LINES": how.lines, "FIXED": how.rounding.startswith("fixed"),
                "AWAY": how.rounding == "fixed_10" and x.spec.dtype == "int8",
            }  # fmt: skip
        n, c, h, w = x.spec.shape
        push: dict[str, int | float] = {
            "vectors": y.spec.nbytes // 16, "n": n, "c": c, "x_h": h, "x_w": w, "y_h": how.size[0],
            "y_w": how.size[1], "shift": shift(y.spec.dtype),
        }  # fmt: skip
        given, stored = real or (QParams(1.0),) * 2
        push |= {"x_scale": given.scale, "x_zero": signed_zero_point(given), **steps(stored)}
        mode = "real" if real is not None and how.mode == "linear" else how.mode
        variant = catalog().find("resize_q8__pixels", mode=mode, layout=PIXELS[y.spec.layout])
        b.dispatch(b.device.program(variant, constants), [x, b.constant(table), y], push)
    return y


def _table(how: Resize) -> npt.NDArray[np.int32]:
    """Return an int32 array (OH + OW, 4): an entry for each row of the result, then one for each column. An
    entry has the two source indices, and the distances from them as the bits of float32 numbers. For
    rounding "fixed", the third number is the integer weight of the second index."""
    parts = []
    for axis in (0, 1):
        part = np.zeros((how.size[axis], 4), np.int32)
        if how.mode == "nearest":
            part[:, 0] = how.nearest(axis)
        elif how.rounding.startswith("fixed"):
            part[:, 0], part[:, 1], part[:, 2] = how.fixed(axis)
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
