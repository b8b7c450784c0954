"""Add selections by a condition (Where), and ArgMax and ArgMin of 8-bit values, to a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import ArgumentError, DTypeError
from ..kernels.repack import repacked
from ..kernels.sharing import sharers
from ..layout.extent import BYTES, Spec, layout_number
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from . import operand
from .take import gather, numbers


def chosen(b: Builder, flags: Value, x: Value, z: Value) -> Value:
    """Add ``where(flags, x, z)`` to a plan. *flags*: the condition, uint8 (0 or 1). x and z have the same
    type: 8-bit, float32 or int32. Shapes broadcast as in NumPy."""
    if x.spec.dtype != z.spec.dtype or flags.spec.dtype != "uint8":
        raise DTypeError(
            f"where: flags are {flags.spec.dtype}, x {x.spec.dtype} and z {z.spec.dtype};"
            " flags must be uint8, x and z of one type"
        )
    try:
        shape = np.broadcast_shapes(flags.spec.shape, x.spec.shape, z.spec.shape)
    except ValueError:
        raise ArgumentError(
            f"where: shapes {flags.spec.shape}, {x.spec.shape} and {z.spec.shape} do not broadcast"
        ) from None
    ones = [value.spec.size == 1 for value in (x, z)]  # the kernel broadcasts single elements
    flags = broadcast_to(b, flags, shape)
    x, z = (v if one else broadcast_to(b, v, shape) for v, one in zip((x, z), ones, strict=True))
    packed, layout = x.spec.dtype in BYTES, None
    if packed:
        layout = next((v for v, one in zip((x, z), ones, strict=True) if not one), flags).spec.layout
        flags = repacked(b, flags, layout)
        x, z = (v if one else repacked(b, v, layout) for v, one in zip((x, z), ones, strict=True))
    y = b.new(Spec(shape, x.spec.dtype, layout))
    if y.spec.size:
        push: dict[str, int | float] = {"count": y.spec.nbytes // 4}
        push |= operand.named("c", flags.spec.extent)
        variant = catalog().find("where__element", of="bytes" if packed else "numbers")
        constants: dict[str, Constant] = {
            "LAYOUT": layout_number(flags.spec.layout), "A_ONE": ones[0], "B_ONE": ones[1],
        }  # fmt: skip
        b.dispatch(b.device.program(variant, constants), [flags, x, z, y], push)
    return y


def broadcast_to(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    """Return x broadcast to a shape."""
    if x.spec.shape == tuple(shape):
        return x
    return gather(b, x, np.broadcast_to(numbers(b, x.spec.shape, math.prod(shape)), shape))


def argmax_of(b: Builder, x: Value, axis: int, least: bool, last: bool) -> Value:
    """Add the indices of the largest elements along *axis* (>= 0) to a plan, as int32 without this axis.

    least: the smallest elements instead. last: of equal elements, return the last index; False: the first.
    """
    shape = x.spec.shape
    if not shape[axis]:
        raise ArgumentError(f"argmax: axis {axis} of {shape} is empty; it must have a number")
    y = b.new(Spec((*shape[:axis], *shape[axis + 1 :]), "int32"))
    if y.spec.size:
        push: dict[str, int | float] = {
            "count": y.spec.size, "steps": shape[axis], "inner": math.prod(shape[axis + 1 :]),
            "sign": -1 if least else 1, "later": int(last),
        }  # fmt: skip
        push |= operand.named("x", x.spec.extent)
        program = b.device.program(
            catalog().find("argmax_q8__element"),
            {"LAYOUT": layout_number(x.spec.layout), "THREADS": sharers(shape[axis])},
        )
        b.dispatch(program, [x, y], push, x.spec.size)
    return y
