"""Copies of elements by index, slices, and splits. Each element of a result is an element of x or a fill
value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked, integer
from ..errors import ArgumentError, DTypeError
from ..kernels.cast import converted
from ..kernels.gather import gathered_rows
from ..kernels.move import Moved, move, strides
from ..kernels.repack import repacked
from ..kernels.strided import contiguous, gathered_halves, strided
from ..layout.extent import BYTES, CONTIGUOUS, Spec, layout_number
from ..numerics.stored import shift
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from . import operand
from .operand import Operand

ANY = (*BYTES, "float32", "int32", "float16")
Places = npt.NDArray[np.integer[Any]]


@checked
def take(
    x: Operand,
    places: npt.ArrayLike,
    fill: int | float = 0,
    *,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``x.ravel()[places]``: for each index in *places*, the element of x with this index in
    row-major order, or *fill* for index -1.

    Args:
        x: int8, uint8, float32, float16 or int32, a NumPy array or a Tensor. The result is of the same
            class, with the shape of *places* and the qparams of x.
        places: integer indices in [-1, x.size). For gather, tile, broadcast_to, roll or flip, apply NumPy's
            function to ``np.arange(x.size).reshape(x.shape)``.
        fill: a value of x's type.

    Raises ArgumentError for an index or a fill value out of range, DTypeError for other types.

    >>> take(np.array([[1, 2], [3, 4]], np.int8), [[3, 0, -1]], 9)
    array([[4, 1, 9]], dtype=int8)
    """
    return operand.apply("take", gather, {"x": x}, (np.asarray(places), np.asarray(fill)), device, out, ANY)


def gather(b: Builder, x: Value, places: Places, fill: npt.ArrayLike = 0) -> Value:
    """Add `take` to a plan."""
    s = x.spec
    if places.dtype.kind not in "iu":
        raise DTypeError(f"take: places are {places.dtype}; they must be integers")
    if places.size and not (places.min() >= -1 and places.max() < s.size):
        raise ArgumentError(
            f"take: places go from {places.min()} to {places.max()}; x has {s.size} elements (-1 is the fill)"
        )
    held = _held(s.dtype, np.asarray(fill))
    if not places.size:
        return b.new(Spec(places.shape, s.dtype, None, s.qparams))
    return _gathered_by(b, x, b.constant(_list(b, "take", places)), places.shape, held)


def gathered(b: Builder, x: Value, ids: Value, axis: int) -> Value:
    """Add ``np.take(x, ids, axis)`` to a plan, for int32 *ids* on the device. Negative ids count from the
    end. The caller checks the range of the ids; an id beyond the axis selects the nearest element."""
    shape, at = x.spec.shape, ids.spec
    if at.dtype != "int32":
        raise DTypeError(f"gather: the indices are {at.dtype}; they must be int32")
    whole = (*shape[:axis], *at.shape, *shape[axis + 1 :])
    if not shape[axis] or x.spec.size >= 1 << 31:
        raise ArgumentError(
            f"gather: axis is {axis} and x has shape {shape}; the axis must have at least 1 element, and x"
            " fewer than 2^31"
        )
    if not math.prod(whole):
        return b.new(Spec(whole, x.spec.dtype, None, x.spec.qparams))
    rows = gathered_rows(b, x, ids, axis, whole)
    if rows is not None:
        return rows
    index = b.new(Spec(whole, "int32"))
    push: dict[str, int | float] = {
        "elements": index.spec.size, "ids": at.size, "axis": shape[axis],
        "inner": math.prod(shape[axis + 1 :]),
    }  # fmt: skip
    b.dispatch(b.device.program(catalog().find("gather_index__element")), [ids, index], push)
    return _gathered_by(b, x, index, whole, _held(x.spec.dtype, np.zeros(())))


def _gathered_by(b: Builder, x: Value, index: Value, shape: Sequence[int], held: npt.NDArray[Any]) -> Value:
    """Return the elements of x at the flat indices *index*, with this shape; the fill value *held* for
    index -1."""
    s = x.spec
    if s.dtype == "float16":
        return gathered_halves(b, x, index, shape, int(held.view(np.uint16)))
    y = b.new(Spec(shape, s.dtype, None, s.qparams))
    if y.spec.layout == CONTIGUOUS:
        program = b.device.program(catalog().find("take_32__element", how="take"))
        b.dispatch(program, [x, index, y], {"elements": y.spec.size, "fill": int(held.view(np.int32))})
        return y
    constants = {"X_LAYOUT": layout_number(s.layout), "Y_LAYOUT": layout_number(y.spec.layout)}
    push: dict[str, int | float] = {"words": y.spec.nbytes // 4, "fill": int(held) - shift(s.dtype)}
    push |= operand.named("y", y.spec.extent) | operand.named("x", s.extent)
    b.dispatch(b.device.program(catalog().find("take_q8__word"), constants), [x, index, y], push)
    return y


# Maximum number of elements of a copy. Each needs an index of 4 bytes on the host, which is copied to the
# device once.
MOST_PLACES = 1 << 27


def check_places(b: Builder, size: int, count: int) -> None:
    """Raise ArgumentError if a copy of *count* elements from an array of *size* elements exceeds
    `MOST_PLACES` or the size of a binding. Call it before computing indices."""
    most = min(MOST_PLACES, int(b.device.capabilities.properties["maxStorageBufferRange"]) // 4)
    if max(size, count) > most:
        raise ArgumentError(
            f"a copy of {size} elements to {count} places; this device allows at most {most} (4 bytes for"
            " each place): use a smaller batch, or copy in parts"
        )


def numbers(b: Builder, x: Sequence[int], count: int) -> Places:
    """Return the flat indices of an array of shape *x*, in this shape. Raises ArgumentError if a `gather`
    of *count* elements is impossible (`check_places`)."""
    check_places(b, math.prod(x), count)
    return np.arange(math.prod(x), dtype=np.int32).reshape(tuple(x))


def _held(dtype: str, fill: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a fill value as an array of type *dtype* (that of x). Its bytes are part of the plan's cache
    key, so 0.0 and -0.0 get different plans."""
    real, value = dtype.startswith("float"), fill.item()
    if not real and fill != np.rint(fill):  # true for NaN, too
        raise DTypeError(f"take: fill is {fill}; x holds {dtype}, so it must be a whole number")
    info: Any = np.finfo(dtype) if real else np.iinfo(dtype)
    if not (float(info.min) <= value <= float(info.max) or (real and not np.isfinite(fill))):
        raise ArgumentError(f"take: fill is {fill}; {dtype} cannot hold it")
    return fill.astype(dtype)


def _list(b: Builder, name: str, places: Places) -> Resident:
    """Return an array of indices as constant data on the device."""
    array = np.ascontiguousarray(places, np.int32)
    return b.device.constant((name, array.shape, array.tobytes()), array.nbytes, lambda: array)


@checked
def slice_(
    x: Operand,
    slices: Sequence[slice],
    *,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``x[slices]``, a part of x. The steps may be any integers except 0.

    Args:
        x: int8, uint8, float32, float16 or int32, a NumPy array or a Tensor.
        slices: Python slices, one for each of the first axes.

    The result equals that of ONNX Slice. The public name is ``vkq.slice``.

    >>> slice_(np.array([[1, 2, 3], [4, 5, 6]], np.int8), [slice(None), slice(2, 0, -1)])
    array([[3, 2],
           [6, 5]], dtype=int8)
    """
    if not all(isinstance(s, slice) for s in slices):
        raise ArgumentError(f"slice: {list(slices)} are not all slices; give at most one slice for each axis")
    bounds = tuple((s.start, s.stop, s.step) for s in slices)
    if not all(n is None or integer(n) for one in bounds for n in one) or any(one[2] == 0 for one in bounds):
        raise ArgumentError(f"slice: {list(slices)}; bounds must be integers or None, and steps not 0")
    return operand.apply("slice", _sliced, {"x": x}, (bounds,), device, out, ANY)


def _sliced(b: Builder, x: Value, bounds: Sequence[tuple[Any, Any, Any]]) -> Value:
    shape = x.spec.shape
    if len(bounds) > len(shape):
        raise ArgumentError(
            f"slice: {list(bounds)} do not fit {len(shape)} axes; give at most one slice for each axis"
        )
    whole = (*bounds, *((None, None, None),) * (len(shape) - len(bounds)))
    return sliced(b, x, [range(*slice(*one).indices(d)) for one, d in zip(whole, shape, strict=True)])


def sliced(b: Builder, x: Value, parts: Sequence[range]) -> Value:
    """Add a slice of x to a plan; *parts* has the range of indices along each axis."""
    s, shape = x.spec, tuple(len(part) for part in parts)
    steps = any(part.step != 1 and len(part) > 1 for part in parts)
    if shape == s.shape and not steps:
        return x
    layout = operand.axes_layout(s.layout, len(shape))
    apart = s.dtype in BYTES and len(shape) > 4 and Spec(shape, s.dtype, layout).folded
    if s.layout == CONTIGUOUS and s.dtype not in BYTES:
        own = contiguous(s.shape)
        first = sum(part.start * stride for part, stride in zip(parts, own, strict=True) if len(part))
        return strided(b, x, shape, [p.step * n for p, n in zip(parts, own, strict=True)], first)
    if s.layout == CONTIGUOUS or steps or apart or not math.prod(shape):
        return gather(b, x, numbers(b, s.shape, math.prod(shape))[np.ix_(*parts)])
    y = b.new(Spec(shape, s.dtype, layout, s.qparams))
    axes = [
        Moved(len(part), -part.start, part.start + len(part), stride)
        for part, stride in zip(parts, strides(s.shape), strict=True)
    ]
    move(b, repacked(b, x, layout), y, axes, 0)
    return y


@checked
def split(
    x: Operand, sizes: Sequence[int], axis: int, *, device: Device | int | str | None = None
) -> list[Any]:
    """Split x along an axis into parts of these sizes, which must add up to the length of the axis. The
    results equal those of ONNX Split.

    >>> [part.tolist() for part in split(np.array([[1, 2, 3]], np.int8), [1, 2], 1)]
    [[[1]], [[2, 3]]]
    """
    chosen = operand.device_of("split", [x], device)
    tensor = operand.take("split", "x", x, chosen, ANY)
    at = operand.normal_axis("split", axis, len(tensor.shape))
    if min(sizes, default=0) < 0 or sum(sizes) != tensor.shape[at]:
        raise ArgumentError(f"split: sizes {list(sizes)} do not add up to axis {at} of {tensor.shape}")
    begins = [sum(sizes[:i]) for i in range(len(sizes))]
    lead = (slice(None),) * at
    parts = [
        slice_(tensor, [*lead, slice(begin, begin + size)]) for begin, size in zip(begins, sizes, strict=True)
    ]
    return parts if isinstance(x, Tensor) else [part.numpy() for part in parts]


def concatenated_words(b: Builder, xs: Sequence[Value], axis: int) -> Value:
    """Add the concatenation of float32, int32 or float16 arrays along an axis to a plan."""
    if xs[0].spec.dtype == "float16":
        return _concatenated_halves(b, xs, axis)
    shape = list(xs[0].spec.shape)
    shape[axis] = sum(x.spec.shape[axis] for x in xs)
    y = b.new(Spec(shape, xs[0].spec.dtype))
    where = numbers(b, shape, y.spec.size)
    cuts = np.cumsum([x.spec.shape[axis] for x in xs])[:-1]
    program = b.device.program(catalog().find("take_32__element", how="put"))
    for x, places in zip(xs, np.split(where, cuts, axis), strict=True):
        if x.spec.size:
            push = {"elements": x.spec.size, "fill": 0}
            b.dispatch(program, [x, b.constant(_list(b, "put", places)), y], push)
    return y


def _concatenated_halves(b: Builder, xs: Sequence[Value], axis: int) -> Value:
    """Concatenate float16 arrays: copy words of two elements if no word has elements of two arrays, else
    convert to float32."""
    rank = len(xs[0].spec.shape)
    inner = math.prod(xs[0].spec.shape[axis % rank + 1 :])
    if all(x.spec.shape[axis] * inner % 2 == 0 for x in xs):
        lines = []
        for x in xs:
            outer = math.prod(x.spec.shape[: axis % rank])
            lines.append(b.view(x, Spec((outer, x.spec.shape[axis] * inner // 2), "int32")))
        whole = concatenated_words(b, lines, 1)
    else:
        whole = converted(b, concatenated_words(b, [converted(b, x, "float32") for x in xs], axis), "float16")
    shape = list(xs[0].spec.shape)
    shape[axis] = sum(x.spec.shape[axis] for x in xs)
    return b.view(whole, Spec(shape, "float16"))
