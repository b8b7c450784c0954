"""Element-wise arithmetic of float32 numbers, for what a model computes beside its quantized operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..layout.extent import Spec
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from .choose import whole

RealOp = Literal["add", "sub", "mul", "div", "max", "min"]


def combined(b: Builder, x: Value, z: Value, op: RealOp) -> Value:
    """Adds ``op(x, z)`` of float32 arrays, whose shapes broadcast as NumPy's, to a plan.

    Each result is rounded to nearest even; subnormal numbers may be zero. max and min are NaN where an
    operand is, and of zeros of both signs the positive and the negative one.
    """
    if not x.spec.dtype == z.spec.dtype == "float32":
        raise DTypeError(f"{op}: x is {x.spec.dtype} and z {z.spec.dtype}; both must be float32")
    try:
        shape = np.broadcast_shapes(x.spec.shape, z.spec.shape)
    except ValueError:
        raise ArgumentError(f"{op}: shapes {x.spec.shape} and {z.spec.shape} do not broadcast") from None
    y = b.new(Spec(shape, "float32"))
    if y.spec.size:
        x, z = (value if value.spec.size == 1 else whole(b, value, shape) for value in (x, z))
        push: dict[str, int | float] = {
            "count": y.spec.size, "a_step": int(x.spec.size > 1), "b_step": int(z.spec.size > 1),
        }  # fmt: skip
        b.dispatch(b.device.program(catalog().find("real_binary__element", op=op)), [x, z, y], push)
    return y


def number(b: Builder, value: npt.ArrayLike) -> Value:
    """A float32 number, or several, as an operand."""
    array = np.asarray(value, np.float32)
    key = ("real", array.shape, array.tobytes())
    resident = b.device.constant(key, array.nbytes, lambda: np.ascontiguousarray(array))
    return b.view(b.constant(resident), Spec(array.shape, "float32"))


def summed(b: Builder, x: Value, kept: int) -> Value:
    """Adds the sums over all axes but the first *kept* to a plan: within 2^-23 of the sum of magnitudes."""
    return _row(b, x, "sum", x.spec.shape[:kept])


def square_root(b: Builder, x: Value) -> Value:
    """Adds the square root of each float32 number to a plan, rounded to nearest even."""
    return _row(b, x, "sqrt", x.spec.shape)


def converted(b: Builder, x: Value) -> Value:
    """Adds the float32 number nearest to each int32 one (of two the even one) to a plan."""
    return _row(b, x, "cast", x.spec.shape)


def _row(b: Builder, x: Value, op: Literal["sum", "sqrt", "cast"], shape: Sequence[int]) -> Value:
    wanted = "int32" if op == "cast" else "float32"
    if x.spec.dtype != wanted:
        raise DTypeError(f"{op}: x is {x.spec.dtype}; it must be {wanted}")
    y = b.new(Spec(shape, "float32"))
    if y.spec.size:
        push: dict[str, int | float] = {"rows": y.spec.size, "columns": x.spec.size // y.spec.size}
        b.dispatch(b.device.program(catalog().find("real_row__element", op=op)), [x, y], push)
    return y
