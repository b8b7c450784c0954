"""Any movement of elements: each element of the result is one of x, or a fill; slices; splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..numerics.stored import shift
from ..runtime.device import Device
from ..runtime.tensor import CONTIGUOUS, Tensor
from ..shader.catalog import catalog
from . import operand
from .operand import Operand
from .quantize import layout_number
from .repack import to_layout
from .shape import Axis, move, strides

Places = npt.NDArray[np.integer[Any]]


def take(x: Operand, places: npt.ArrayLike, fill: int | float = 0, *, device: Device | None = None) -> Any:
    """``x.ravel()[places]``: each element of the result is the element of x at that place in row-major order,
    or *fill* where the place is -1.

    x: int8, uint8, float32 or int32, a NumPy array or a Tensor (the result is the same kind, of the shape of
    places, with the same qparams). places: integers in [-1, x.size). fill: a number of x's own type. What
    NumPy, applied to ``np.arange(x.size).reshape(x.shape)``, gives as places, it would give of x: gather,
    tile, broadcast_to, roll, flip.

    Raises ArgumentError for a place or a fill out of range, DTypeError for other types.

    >>> take(np.array([[1, 2], [3, 4]], np.int8), [[3, 0, -1]], 9)
    array([[4, 1, 9]], dtype=int8)
    """
    chosen = operand.device_of("take", [x], device)
    tensor = x if isinstance(x, Tensor) else Tensor.from_numpy(np.asarray(x), chosen)
    index = np.asarray(places)
    if index.dtype.kind not in "iu":
        raise DTypeError(f"take: places are {index.dtype}; they must be integers")
    if index.size and not (index.min() >= -1 and index.max() < tensor.size):
        raise ArgumentError(
            f"take: places go from {index.min()} to {index.max()}; x has {tensor.size} elements (-1 is"
            " the fill)"
        )
    return operand.give(take_tensor(tensor, index, fill), x)


def take_tensor(x: Tensor, places: Places, fill: int | float = 0) -> Tensor:
    """`take` on a Tensor, with places that are known to be right."""
    y = Tensor(x.device, places.shape, x.dtype, None, x.qparams)
    if not y.size:
        return y
    list_ = np.ascontiguousarray(places, np.int32)
    index = x.device.constant(("take", list_.shape, list_.tobytes()), lambda: list_)
    if y.layout == CONTIGUOUS:
        bits = int(np.asarray(fill, x.dtype).view(np.int32))
        program = x.device.program(catalog().find("take_32__element", how="take"))
        operand.dispatch(program, x.device, [x.buffer, index, y.buffer], {"elements": y.size, "fill": bits})
        return y
    stored = int(fill) - shift(x.dtype)
    if not -128 <= stored <= 127:
        raise ArgumentError(f"take: fill is {fill}; {x.dtype} cannot hold it")
    constants = {"X_LAYOUT": layout_number(x.layout), "Y_LAYOUT": layout_number(y.layout)}
    push: dict[str, int | float] = {"words": y.nbytes // 4, "fill": stored}
    push |= operand.named("y", y.extent) | operand.named("x", x.extent)
    program = x.device.program(catalog().find("take_q8__word"), constants)
    operand.dispatch(program, x.device, [x.buffer, index, y.buffer], push)
    return y


def slice_(x: Operand, slices: Sequence[slice], *, device: Device | None = None) -> Any:
    """``x[slices]``: a part of x, with any steps.

    x: int8 or uint8 (float32 and int32 too), a NumPy array or a Tensor. slices: Python's, one for each of the
    first axes. As ONNX Slice. Public as ``vkq.slice``.

    >>> slice_(np.array([[1, 2, 3], [4, 5, 6]], np.int8), [slice(None), slice(2, 0, -1)])
    array([[3, 2],
           [6, 5]], dtype=int8)
    """
    chosen = operand.device_of("slice", [x], device)
    tensor = x if isinstance(x, Tensor) else Tensor.from_numpy(np.asarray(x), chosen)
    rank = len(tensor.shape)
    if len(slices) > rank or not all(isinstance(s, slice) for s in slices):
        raise ArgumentError(f"slice: {list(slices)} do not fit {rank} axes; give at most one slice for each")
    whole = (*slices, *(slice(None),) * (rank - len(slices)))
    parts = [range(*s.indices(d)) for s, d in zip(whole, tensor.shape, strict=True)]
    return operand.give(slice_tensor(tensor, parts), x)


def slice_tensor(x: Tensor, parts: Sequence[range]) -> Tensor:
    """A Tensor of the elements whose positions along each axis are in *parts*."""
    shape = tuple(len(part) for part in parts)
    if shape == x.shape and all(part.step == 1 or len(part) < 2 for part in parts):
        return x
    if (
        x.layout == CONTIGUOUS
        or any(part.step != 1 and len(part) > 1 for part in parts)
        or not math.prod(shape)
    ):
        where = np.arange(x.size, dtype=np.int32).reshape(x.shape)[np.ix_(*parts)]
        return take_tensor(x, where)
    y = Tensor(x.device, shape, x.dtype, operand.axes_layout(x.layout, len(shape)), x.qparams)
    x = to_layout(x, y.layout)
    axes = [
        Axis(len(part), -part.start, part.start + len(part), stride)
        for part, stride in zip(parts, strides(x.shape), strict=True)
    ]
    if len(shape) > 4 and operand.folded(y):  # the first four axes apart, or what remains of them when joined
        return take_tensor(x, np.arange(x.size, dtype=np.int32).reshape(x.shape)[np.ix_(*parts)])
    move(x, y, axes, 0)
    return y


def split(x: Operand, sizes: Sequence[int], axis: int, *, device: Device | None = None) -> list[Any]:
    """x cut along an axis into parts of these sizes, which must add up to its length. As ONNX Split.

    >>> [part.tolist() for part in split(np.array([[1, 2, 3]], np.int8), [1, 2], 1)]
    [[[1]], [[2, 3]]]
    """
    chosen = operand.device_of("split", [x], device)
    tensor = x if isinstance(x, Tensor) else Tensor.from_numpy(np.asarray(x), chosen)
    at = operand.normal_axis("split", axis, len(tensor.shape))
    if min(sizes, default=0) < 0 or sum(sizes) != tensor.shape[at]:
        raise ArgumentError(f"split: sizes {list(sizes)} do not add up to axis {at} of {tensor.shape}")
    begins = [sum(sizes[:i]) for i in range(len(sizes))]
    every = [range(d) for d in tensor.shape]
    parts = [
        slice_tensor(tensor, [*every[:at], range(begin, begin + size), *every[at + 1 :]])
        for begin, size in zip(begins, sizes, strict=True)
    ]
    return [operand.give(part, x) for part in parts]


def concat_words(xs: Sequence[Tensor], axis: int) -> Tensor:
    """float32 or int32 Tensors one after the other along an axis."""
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    y = Tensor(xs[0].device, shape, xs[0].dtype)
    numbers = np.arange(y.size, dtype=np.int32).reshape(shape)
    cuts = np.cumsum([x.shape[axis] for x in xs])[:-1]
    program = y.device.program(catalog().find("take_32__element", how="put"))
    for x, part in zip(xs, np.split(numbers, cuts, axis), strict=True):
        if x.size:
            places = np.ascontiguousarray(part)
            index = y.device.constant(("put", places.shape, places.tobytes()), _itself(places))
            operand.dispatch(program, y.device, [x.buffer, index, y.buffer], {"elements": x.size, "fill": 0})
    return y


def _itself(array: Places) -> Callable[[], Places]:
    return lambda: array
