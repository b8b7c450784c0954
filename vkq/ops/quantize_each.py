"""Add quantization with several scales and zero points to a plan: along an axis, in blocks, or with
parameters that are computed at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..kernels.dynamic import quantize_rows
from ..kernels.repack import reshaped
from ..layout.extent import MATRIX, Spec, layout_number
from ..numerics.qparams import check_scales, check_zero_points
from ..numerics.stored import shift
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from .take import gather

Array = npt.NDArray[Any]


def quantized_each(b: Builder, x: Value, scale: Array, zero_point: Array) -> Value:
    """Add ``saturate(round_half_even(x / scale) + zero_point)`` of float32 x to a plan. scale and
    zero_point broadcast to x: for example, they have a value for each channel, (C, 1, 1), or for each
    element. The result has the zero point's type, and equals that of ONNX QuantizeLinear with an axis or
    blocks."""
    y = b.new(Spec(x.spec.shape, zero_point.dtype.name))
    if y.spec.size:
        scales, zeros = _parameters(b, x.spec.shape, scale, zero_point)
        _dispatch(b, "q8", y.spec, y.spec.nbytes // 4, [x, scales, zeros, y])
    return y


def dequantized_each(b: Builder, x: Value, scale: Array, zero_point: Array) -> Value:
    """Add ``(x - zero_point) * scale`` of 8-bit x, in float32, to a plan. scale and zero_point broadcast to
    x. The result equals that of ONNX DequantizeLinear with an axis or blocks."""
    y = b.new(Spec(x.spec.shape, "float32"))
    if y.spec.size:
        scales, zeros = _parameters(b, x.spec.shape, scale, zero_point)
        _dispatch(b, "f32", x.spec, y.spec.size, [x, scales, zeros, y])
    return y


def quantized_dynamically(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """Add a quantization of float32 x to uint8 to a plan. Return (result, scale, zero point). The
    parameters are those of the range of x, extended to contain 0; NaN is ignored. The scale is at least
    2**-126, and infinite for an infinite range. The results equal those of ONNX DynamicQuantizeLinear."""
    packed, parameters = quantize_rows(b, x, 1, x.spec.size, MATRIX, infinities=True)
    y = reshaped(b, b.view(packed, Spec((1, x.spec.size), "uint8", MATRIX)), x.spec.shape)
    zero = Spec((), "uint8")  # one word; its lowest byte is the zero point as int8
    moved = gather(b, parameters, np.array([1] + [-1] * (zero.nbytes // 4 - 1)))
    scale = gather(b, parameters, np.array(0))
    return y, b.view(scale, Spec((), "float32")), b.view(moved, zero)


def _parameters(b: Builder, shape: Sequence[int], scale: Array, zero: Array) -> tuple[Value, Value]:
    """Return the scales and the stored zero points, broadcast to *shape*, as constants of the plan."""
    flat = scale.reshape(-1)
    check_scales(flat, flat.size, "quantize: scale")
    check_zero_points(zero.reshape(-1), zero.size, zero.dtype, "quantize: zero_point")
    try:
        each = np.array(np.broadcast_to(scale.astype(np.float32), shape))
        moved = np.array(np.broadcast_to(zero.astype(np.int32) - shift(zero.dtype.name), shape))
    except ValueError:
        raise ArgumentError(
            f"quantize: scale {scale.shape} and zero_point {zero.shape} must broadcast to {tuple(shape)}"
        ) from None

    def kept(array: Array) -> Value:
        key = ("quantize_each", array.shape, array.tobytes())
        return b.constant(b.device.constant(key, array.nbytes, lambda: array))

    return kept(each), kept(moved)


def _dispatch(b: Builder, to: str, packed: Spec, threads: int, slots: list[Value]) -> None:
    n, c, h, w = packed.extent
    push: dict[str, int | float] = {"threads": threads, "n": n, "c": c, "h": h, "w": w}
    program = b.device.program(
        catalog().find("quantize_each__element", to=to), {"LAYOUT": layout_number(packed.layout)}
    )
    b.dispatch(program, slots, push)
