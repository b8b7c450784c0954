"""Element-wise arithmetic, sums and pools of float32 arrays, for the float parts of a quantized model."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..kernels.pooling import BY_AXES
from ..kernels.sharing import SHARERS, sharers
from ..layout.extent import Spec
from ..problem.window import Window
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from .choose import broadcast_to

SHARED = 128  # minimum number of elements of a sum that several invocations share
# SHARERS_OF_LARGEST invocations share a window of LARGEST or more elements.
LARGEST, SHARERS_OF_LARGEST = 1 << 20, 128
PART = 4096 * SHARERS  # maximum number of elements that the invocations of one sum add in one dispatch

RealOp = Literal["add", "sub", "mul", "div", "max", "min"]


def combined(b: Builder, x: Value, z: Value, op: RealOp) -> Value:
    """Add ``op(x, z)`` of float32 arrays, with shapes broadcast as in NumPy, to a plan.

    Each result is rounded to nearest even; subnormal results may be zero. max and min are NaN if an operand
    is NaN. Of zeros with different signs, max returns +0 and min -0.
    """
    if not x.spec.dtype == z.spec.dtype == "float32":
        raise DTypeError(f"{op}: x is {x.spec.dtype} and z {z.spec.dtype}; both must be float32")
    try:
        shape = np.broadcast_shapes(x.spec.shape, z.spec.shape)
    except ValueError:
        raise ArgumentError(f"{op}: shapes {x.spec.shape} and {z.spec.shape} do not broadcast") from None
    y = b.new(Spec(shape, "float32"))
    if y.spec.size:
        x, z = (value if value.spec.size == 1 else broadcast_to(b, value, shape) for value in (x, z))
        push: dict[str, int | float] = {
            "count": y.spec.size, "a_step": int(x.spec.size > 1), "b_step": int(z.spec.size > 1),
        }  # fmt: skip
        b.dispatch(b.device.program(catalog().find("real_binary__element", op=op)), [x, z, y], push)
    return y


def number(b: Builder, value: npt.ArrayLike) -> Value:
    """Return a float32 constant (a scalar or an array) as a value of the plan."""
    array = np.asarray(value, np.float32)
    key = ("real", array.shape, array.tobytes())
    resident = b.device.constant(key, array.nbytes, lambda: np.ascontiguousarray(array))
    return b.view(b.constant(resident), Spec(array.shape, "float32"))


def summed(b: Builder, x: Value, kept: int) -> Value:
    """Add float32 sums over all axes except the first *kept* to a plan. The error is at most 2^-23 times
    the sum of magnitudes, or 2^-22 times for more than `PART` elements. The order of additions depends only
    on the number of elements."""
    shape = x.spec.shape[:kept]
    _require("sum", x)
    y = b.new(Spec(shape, "float32"))
    if y.spec.size:
        columns = x.spec.size // y.spec.size
        parts = -(-columns // PART)
        sums = y if parts == 1 else b.new(Spec((*shape, parts), "float32"))
        threads = {"THREADS": sharers(columns, SHARED)}
        push: dict[str, int | float] = {"rows": y.spec.size, "columns": columns, "parts": parts}
        b.dispatch(
            b.device.program(catalog().find("real_sum__row"), threads), [x, sums], push, 8 * x.spec.size
        )
        if parts > 1:
            return summed(b, sums, kept)
    return y


def pooled(
    b: Builder, x: Value, window: Window, of: Literal["max", "mean"], count_padding: bool = False
) -> Value:
    """Add the maximum or the mean of each window of float32 images to a plan. Subnormal values may become
    zero.

    max is NaN if an element is NaN, and -infinity for a window without elements. A mean is the sum of a
    window's elements, each addition rounded, divided by their number. *count_padding*: this number includes
    the elements in the padding.

    The error of a mean is at most (taps / lanes + log2(lanes) + 2) * 2^-24 times the mean of magnitudes,
    with lanes from `_lanes`. The order of the sum depends only on the sizes.
    """
    _require(of, x)
    if of == "max" and min(window.kernel) > 1 and window.taps >= BY_AXES:
        first, then = window.by_axes()
        return pooled(b, pooled(b, x, first, of), then, of)
    y = b.new(Spec(window.y_shape, "float32"))
    top, left, bottom, right = window.padding
    longest = max(window.x_shape[2] + top + bottom, window.x_shape[3] + left + right, *window.dilation)
    if longest >= 1 << 31:
        raise ArgumentError(f"{of} of windows: padded images and dilations must be below 2^31, not {longest}")
    if y.spec.size:
        (n, c, h, w), (oh, ow), lanes = window.x_shape, window.y_shape[2:], _lanes(window.taps)
        push: dict[str, int | float] = {"planes": n * c, "h": h, "w": w, "oh": oh, "ow": ow}
        for name in ("kernel", "stride", "dilation"):
            push[f"{name}_h"], push[f"{name}_w"] = getattr(window, name)
        push |= dict(zip(("pad_t", "pad_l", "pad_b", "pad_r"), window.padding, strict=True))
        constants = {
            "LOCAL_X": max(lanes, SHARERS), "THREADS": lanes, "MEAN": of == "mean",
            "COUNT_PADDING": count_padding,
        }  # fmt: skip
        program = b.device.program(catalog().find("real_window__pixels"), constants)
        b.dispatch(program, [x, y], push, y.spec.size * window.taps)
    return y


def _lanes(taps: int) -> int:
    """Return the number of invocations that share a window."""
    return SHARERS_OF_LARGEST if taps >= LARGEST else sharers(taps)


def _require(op: str, x: Value) -> None:
    if x.spec.dtype != "float32":
        raise DTypeError(f"{op}: x is {x.spec.dtype}; it must be float32")
