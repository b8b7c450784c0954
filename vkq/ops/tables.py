"""Tables beyond `vkq.lookup`: one for each channel, with float32 results, or of two 8-bit numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..numerics.stored import signed
from ..runtime.device import Device
from ..runtime.tensor import CONTIGUOUS, Tensor
from ..shader.catalog import catalog
from . import operand
from .elementwise import pairs_tensor
from .operand import Operand
from .quantize import layout_number


def lookup_axis(x: Operand, table: npt.ArrayLike, axis: int = 1, *, device: Device | None = None) -> Any:
    """``table[c, x - qmin]`` for each element x of slice c along an axis: a function for each channel.

    x: int8 or uint8, a NumPy array or a Tensor (the result is the same kind). table: (C, 256) for an axis of
    C, or (256,) for all: int8 or uint8 (the result keeps the layout), or float32. The entry of -128 (of 0 for
    uint8) comes first. A batch normalization between quantized tensors is such a table.

    Raises DTypeError for other types, ArgumentError for another shape.

    >>> lookup_axis(np.array([[-128, -127]], np.int8), np.arange(512, dtype=np.float32).reshape(2, 256))
    array([[  0., 257.]], dtype=float32)
    """
    entries = np.asarray(table)
    tensor = operand.take("lookup_axis", "x", x, operand.device_of("lookup_axis", [x], device))
    at = operand.normal_axis("lookup_axis", axis, max(len(tensor.shape), 1)) if entries.ndim == 2 else 0
    if entries.dtype.name not in ("int8", "uint8", "float32"):
        raise DTypeError(f"lookup_axis: table is {entries.dtype}; it must be int8, uint8 or float32")
    if entries.shape not in ((256,), (*tensor.shape[at : at + 1], 256)):
        raise ArgumentError(
            f"lookup_axis: table is {entries.shape}; it must be (256,), or (C, 256) for axis {at} of"
            f" {tensor.shape}"
        )
    return operand.give(lookup_axis_tensor(tensor, entries, at), x)


def lookup_axis_tensor(x: Tensor, entries: npt.NDArray[Any], axis: int) -> Tensor:
    """The operation on a Tensor."""
    real = entries.dtype == np.float32
    y = Tensor(x.device, x.shape, entries.dtype.name, CONTIGUOUS if real else x.layout)
    if not y.size:
        return y
    stored = np.ascontiguousarray(entries) if real else signed(entries)
    table = x.device.constant(("lookup_axis", entries.shape, stored.tobytes()), lambda: stored)
    n, c, h, w = x.extent
    push: dict[str, int | float] = {
        "threads": y.size if real else y.nbytes // 4, "n": n, "c": c, "h": h, "w": w,
        "inner": math.prod(x.shape[axis + 1 :]), "count": entries.shape[0] if entries.ndim == 2 else 1,
    }  # fmt: skip
    variant = catalog().find("lookup_axis__element", out="f32" if real else "q8")
    program = x.device.program(variant, {"LAYOUT": layout_number(x.layout)})
    operand.dispatch(program, x.device, [x.buffer, table, y.buffer], push)
    return y


def lookup_pair(a: Operand, b: Operand, table: npt.ArrayLike, *, device: Device | None = None) -> Any:
    """``table[a - qmin, b - qmin]``: any function of two 8-bit numbers, with NumPy's broadcasting.

    a, b: int8 or uint8 of one type, NumPy arrays or Tensors. table: (256, 256) of that type.

    >>> least = np.minimum.outer(np.arange(-128, 128), np.arange(-128, 128)).astype(np.int8)
    >>> lookup_pair(np.array([1, -7], np.int8), np.array([0], np.int8), least)
    array([ 0, -7], dtype=int8)
    """
    entries = np.asarray(table)
    chosen = operand.device_of("lookup_pair", [a, b], device)
    ta, tb = operand.take("lookup_pair", "a", a, chosen), operand.take("lookup_pair", "b", b, chosen)
    if entries.shape != (256, 256) or not ta.dtype == tb.dtype == entries.dtype.name:
        raise ArgumentError(
            f"lookup_pair: table is {entries.dtype} {entries.shape} for {ta.dtype} and {tb.dtype}; it must be"
            " (256, 256), and all of one type"
        )
    return operand.give(pairs_tensor(ta, tb, entries), a, b)
