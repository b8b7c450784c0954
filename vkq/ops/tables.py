"""Lookups beyond `vkq.lookup`: tables for each channel, tables with float32 results, tables of two 8-bit
values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError, DTypeError
from ..layout.extent import Spec, layout_number
from ..numerics.stored import signed
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from . import operand
from .elementwise import paired
from .operand import Operand


@checked
def lookup_axis(
    x: Operand,
    table: npt.ArrayLike,
    axis: int = 1,
    *,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``table[c, x - qmin]`` for each element x of slice c along an axis: a separate function for
    each channel.

    Args:
        x: int8 or uint8, a NumPy array or a Tensor. The result is of the same class.
        table: (C, 256) for an axis of length C, or (256,) for all slices; int8 or uint8 (the result has the
            layout of x), or float32. The first entry is the result for -128 (0 for uint8).

    For example, a batch normalization between quantized tensors is a table (C, 256).

    Raises DTypeError for other types, ArgumentError for another shape.

    >>> lookup_axis(np.array([[-128, -127]], np.int8), np.arange(512, dtype=np.float32).reshape(2, 256))
    array([[  0., 257.]], dtype=float32)
    """
    return operand.apply("lookup_axis", looked_up_along, {"x": x}, (np.asarray(table), axis), device, out)


def looked_up_along(b: Builder, x: Value, entries: npt.NDArray[Any], axis: int = 1) -> Value:
    """Add `lookup_axis` to a plan."""
    s = x.spec
    at = operand.normal_axis("lookup_axis", axis, max(len(s.shape), 1)) if entries.ndim == 2 else 0
    if entries.dtype.name not in ("int8", "uint8", "float32"):
        raise DTypeError(f"lookup_axis: table is {entries.dtype}; it must be int8, uint8 or float32")
    if entries.shape not in ((256,), (*s.shape[at : at + 1], 256)):
        raise ArgumentError(
            f"lookup_axis: table is {entries.shape}; it must be (256,), or (C, 256) for axis {at} of"
            f" {s.shape}"
        )
    real = entries.dtype == np.float32
    y = b.new(Spec(s.shape, entries.dtype.name, None if real else s.layout))
    if not s.size:
        return y
    stored = np.ascontiguousarray(entries) if real else signed(entries)
    key = ("lookup_axis", entries.shape, stored.tobytes())
    table = b.device.constant(key, stored.nbytes, lambda: stored)
    n, c, h, w = s.extent
    push: dict[str, int | float] = {
        "threads": s.size if real else y.spec.nbytes // 4, "n": n, "c": c, "h": h, "w": w,
        "inner": math.prod(s.shape[at + 1 :]), "count": entries.shape[0] if entries.ndim == 2 else 1,
    }  # fmt: skip
    variant = catalog().find("lookup_axis__element", out="f32" if real else "q8")
    program = b.device.program(variant, {"LAYOUT": layout_number(s.layout)})
    b.dispatch(program, [x, b.constant(table), y], push)
    return y


@checked
def lookup_pair(
    a: Operand,
    b: Operand,
    table: npt.ArrayLike,
    *,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``table[a - qmin, b - qmin]``: any function of two 8-bit values. Shapes broadcast as in NumPy.

    Args:
        a, b: int8 or uint8 of one type, NumPy arrays or Tensors.
        table: (256, 256), of this type.

    >>> least = np.minimum.outer(np.arange(-128, 128), np.arange(-128, 128)).astype(np.int8)
    >>> lookup_pair(np.array([1, -7], np.int8), np.array([0], np.int8), least)
    array([ 0, -7], dtype=int8)
    """
    return operand.apply("lookup_pair", looked_up_pair, {"a": a, "b": b}, (np.asarray(table),), device, out)


def looked_up_pair(b: Builder, x: Value, z: Value, entries: npt.NDArray[Any]) -> Value:
    """Add `lookup_pair` to a plan."""
    types = x.spec.dtype, z.spec.dtype
    if entries.shape != (256, 256) or {*types, entries.dtype.name} != {types[0]}:
        raise ArgumentError(
            f"lookup_pair: table is {entries.dtype} {entries.shape} for {types[0]} and {types[1]}; it must be"
            " (256, 256), and all of one type"
        )
    return paired(b, x, z, entries)
