"""Rewrites QuantizeLinear and DequantizeLinear as float arithmetic, if their parameters are computed at run
time. The arithmetic returns the results of these operators, bit for bit."""

from __future__ import annotations

import math

import numpy as np

from ...layout.extent import BYTES
from ..operators.operator import axis_of
from .words import Words


def dequantize_linear(w: Words) -> bool:
    """Emit ``(x - zero_point) * scale``. Only the product is rounded."""
    shape = _shape(w)
    if shape is None or w.spec(0).dtype not in BYTES:
        return False
    apart, zero = w.cast(w.node.inputs[0], "float32"), w.node.input(2)
    if zero:
        apart = w.emit("Sub", [apart, w.reshape(w.cast(zero, "float32"), shape)])
    w.emit("Mul", [apart, w.reshape(w.node.inputs[1], shape)], w.node.outputs[0])
    return True


def quantize_linear(w: Words) -> bool:
    """Emit ``saturate(round_half_even(x / scale) + zero_point)``. NaN becomes the smallest value of the
    type."""
    shape, zero = _shape(w), w.node.input(2)
    dtype = w.spec(2).dtype if zero else str(w.attributes.get("output_dtype", "uint8"))
    if shape is None or w.spec(0).dtype != "float32" or dtype not in BYTES:
        return False
    ends = [w.constant(float(end), "float32") for end in (np.iinfo(dtype).min, np.iinfo(dtype).max)]
    nearest = w.emit("Round", [w.emit("Div", [w.node.inputs[0], w.reshape(w.node.inputs[1], shape)])])
    if zero:
        nearest = w.emit("Add", [nearest, w.reshape(w.cast(zero, "float32"), shape)])
    number = w.emit("Where", [w.emit("IsNaN", [nearest]), ends[0], nearest])
    w.cast(w.emit("Clip", [number, *ends]), dtype, w.node.outputs[0])
    return True


def _shape(w: Words) -> list[int] | None:
    """Return the shape in which the parameters broadcast to x. Return None if the parameters are constant or
    belong to blocks, or if the scale is not float32. The caller then keeps the node."""
    if not (w.node.input(0) and w.node.input(1)):  # the operator's own check reports a missing input
        return None
    spec, scale = w.spec(0), w.spec(1)
    known = w.given(1) is not None and (not w.node.input(2) or w.given(2) is not None)
    if known or scale.dtype != "float32":
        return None
    if math.prod(scale.shape) == 1:
        return []
    if len(scale.shape) != 1 or w.attributes.get("block_size", 0):
        return None
    axis = axis_of(w.node, len(spec.shape), int(w.attributes.get("axis", 1)), "")
    return [scale.shape[0] if i == axis else 1 for i in range(len(spec.shape))]
