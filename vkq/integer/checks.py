"""Check the arguments of the integer functions: arrays must be integers, and sums must fit into the
accumulator."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import AccumulatorOverflowError, ArgumentError, DTypeError
from ..runtime.transfer import as_array
from .work import Range

Accumulate = Literal["int32", "int64", "auto"]
Array = npt.NDArray[Any]

DTYPES = ("int8", "uint8", "int16", "uint16", "int32")
_LIMITS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def accumulator(
    name: str, x_range: Range, w: Array, bias: npt.NDArray[np.int64], accumulate: Accumulate
) -> np.dtype[Any]:
    """Return the dtype of the accumulator, int32 or int64, by the argument *accumulate* (see `conv2d`).
    Raises AccumulatorOverflowError if a sum may exceed the accumulator. *name*: the caller's name in error
    messages."""
    if accumulate not in ("int32", "int64", "auto"):
        raise ArgumentError(f"{name}: accumulate is {accumulate!r}; it must be int32, int64 or auto")
    offsets = bias.astype(object)
    least, most = (sums + offsets for sums in extremes(x_range, w))
    for dtype in ("int32", "int64") if accumulate == "auto" else (accumulate,):
        bottom, top = _LIMITS[dtype]
        if all(bottom <= v for v in least) and all(v <= top for v in most):
            return np.dtype(dtype)
    bottom, top = _LIMITS["int64" if accumulate == "auto" else accumulate]
    worst = max(range(len(w)), key=lambda i: max(most[i] - top, bottom - least[i]))
    remedy = "use accumulate='int64' or 'auto'" if accumulate == "int32" else "use smaller numbers or windows"
    taps = w[worst].astype(object)
    raise AccumulatorOverflowError(
        f"{name}: template {worst}: its sums lie in [{least[worst]}, {most[worst]}] (x in [{x_range[0]},"
        f" {x_range[1]}], positive taps sum to {taps[taps > 0].sum()}, negative ones to"
        f" {taps[taps < 0].sum()}), and {'int64' if accumulate == 'auto' else accumulate} holds [{bottom},"
        f" {top}]; {remedy}"
    )


def extremes(x_range: Range, w: Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return (smallest sum, largest sum) of each template over all images in *x_range*, as arrays of Python
    integers."""
    flat, (low, high) = w.reshape(len(w), math.prod(w.shape[1:])), x_range
    total = flat.sum(axis=1, dtype=np.int64)
    above = total if flat.dtype.kind == "u" else np.maximum(flat, 0).sum(axis=1, dtype=np.int64)
    positive, negative = above.astype(object), (total - above).astype(object)
    return positive * low + negative * high, positive * high + negative * low


def integers(name: str, what: str, values: npt.ArrayLike) -> Array:
    """Return *values* as an array in native byte order. Raises DTypeError if the dtype is not in `DTYPES`.
    *name*, *what*: the names of the function and the argument in error messages."""
    array = as_array(values, f"{name}: {what}")
    native = array.dtype.newbyteorder("=")
    if native.name not in DTYPES:
        raise DTypeError(f"{name}: {what} has dtype {array.dtype}; it must be one of {', '.join(DTYPES)}")
    return array.astype(native, copy=False)


def bias_of(name: str, bias: npt.ArrayLike | None, channels: int) -> npt.NDArray[np.int64]:
    """Return the bias of each template as int64, or zeros if *bias* is None. Raises DTypeError for a wrong
    dtype, and ArgumentError for a wrong shape."""
    if bias is None:
        return np.zeros(channels, np.int64)
    values = np.asarray(bias)
    if values.dtype.kind not in "iu" or values.dtype.name == "uint64":
        raise DTypeError(f"{name}: bias has dtype {values.dtype}; it must be of integers, at most int64")
    if values.shape != (channels,):
        raise ArgumentError(
            f"{name}: bias has shape {values.shape}; it must be ({channels},), one number per template"
        )
    return values.astype(np.int64)


def range_of(values: Array) -> Range:
    """Return (smallest, largest) of the values and zero. Padding, and elements past the edge of an image,
    are zero."""
    if values.size == 0:
        return 0, 0
    return min(int(values.min()), 0), max(int(values.max()), 0)


def squares_fit(name: str, count: int, x_range: Range, w: Array) -> None:
    """Raise AccumulatorOverflowError if the sum of *count* squared differences of image and template may
    exceed int64."""
    reach = max(abs(v) for v in (*x_range, *range_of(w)))
    if count * (2 * reach) ** 2 >= 2**63:
        raise AccumulatorOverflowError(
            f"{name}: {count} squares of numbers up to {reach} may leave int64; use smaller templates or"
            " 16-bit data"
        )
