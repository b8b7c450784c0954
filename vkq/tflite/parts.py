"""Translates operators that split a tensor, combine tensors, or select elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import ModelError
from .file import FileOperator
from .layers import BYTES
from .lowering import FIRST, Lowering, Unsupported
from .movement import Rule, same_parameters

MOST_PARTS = 1 << 10


def axis_of(operator: FileOperator, axis: int, rank: int) -> int:
    """Return *axis* as a non-negative number. Raises ModelError if there is no such axis."""
    if not -rank <= axis < rank:
        raise ModelError(f"{operator}: axis is {axis}; it must be {-rank} to {rank - 1}")
    return axis % rank


def _sliced(low: Lowering, x: int, slices: Sequence[slice], first: bool) -> str:
    """Emit a Slice of the tensor x along all its axes, with channels first if *first*. Return the result's
    name."""
    order = FIRST if first else range(len(slices))
    lists = np.array([[slices[a].start, slices[a].stop, i, slices[a].step] for i, a in enumerate(order)])
    names = [low.constant(column.astype(np.int64), "slice") for column in lists.T]
    return low.emit("Slice", [low.of(x, first), *names])


def _portable_slice(size: int, start: int = 0, stop: int | None = None, step: int = 1) -> slice:
    """Return a slice that means the same in Python and ONNX. A negative *stop* means the position before the
    first element. It becomes -2^31, because Python and ONNX count a small negative end from the end of the
    axis."""
    end = size if stop is None else stop
    return slice(start, end if end >= 0 else -(1 << 31), step)


def strided_slice(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower STRIDED_SLICE. The bits of its masks select axes: axes whose begin or end is ignored, and axes
    that are removed from the result."""
    x, y = operator.inputs[0], operator.outputs[0]
    same_parameters(low, [x], y)
    begin, end, step = (low.numbers(n, "slices") for n in operator.inputs[1:4])
    o, shape = operator.options, low.shape(x)
    if o["ellipsis_mask"] or o["new_axis_mask"] or o["offset"]:
        raise Unsupported("it has an ellipsis, new axes or offsets; vkq supports begins, ends and strides")
    if not len(begin) == len(end) == len(step) <= len(shape) or 0 in step:
        raise ModelError(
            f"{operator}: begin {begin}, end {end} and strides {step} do not fit {shape}; they must have"
            " equal lengths, at most one number for each axis, and no stride may be 0"
        )
    found, kept = [], []
    for i, size in enumerate(shape):
        if i >= len(begin):
            found.append(_portable_slice(size))
            kept.append(i)
            continue
        low_end = None if o["begin_mask"] >> i & 1 else begin[i]
        if o["shrink_axis_mask"] >> i & 1:
            at = 0 if low_end is None else axis_of(operator, begin[i], size)
            found.append(_portable_slice(size, at, at + 1))
            continue
        high_end = None if o["end_mask"] >> i & 1 else end[i]
        found.append(_portable_slice(size, *slice(low_end, high_end, step[i]).indices(size)))
        kept.append(i)
    first = len(kept) == 4 == len(shape) and low.channels_first([x])
    name = _sliced(low, x, found, first)
    if len(kept) < len(shape):
        name = low.reshape(name, [low.specs[name].shape[i] for i in kept])
    low.give(y, name, first)


def slice_(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SLICE. A size of -1 selects all elements from the begin on."""
    x, y = operator.inputs[0], operator.outputs[0]
    same_parameters(low, [x], y)
    begin, size = (low.numbers(n, "slices") for n in operator.inputs[1:3])
    shape = low.shape(x)
    if not len(begin) == len(size) == len(shape):
        raise ModelError(
            f"{operator}: begin {begin} and size {size} do not fit {shape}; both must have one number for"
            " each axis"
        )
    ends = [d if n == -1 else b + n for b, n, d in zip(begin, size, shape, strict=True)]
    if any(not 0 <= b <= e <= d for b, e, d in zip(begin, ends, shape, strict=True)):
        raise ModelError(f"{operator}: begin {begin} and size {size} select elements outside {shape}")
    first = len(shape) == 4 and low.channels_first([x])
    slices = [_portable_slice(d, b, e) for b, e, d in zip(begin, ends, shape, strict=True)]
    low.give(y, _sliced(low, x, slices, first), first)


def _cut(low: Lowering, operator: FileOperator, x: int, axis: int, sizes: Sequence[int]) -> None:
    shape, at = low.shape(x), 0
    if min(sizes, default=0) < 0 or sum(sizes) != shape[axis] or len(sizes) != len(operator.outputs):
        raise ModelError(
            f"{operator}: sizes are {list(sizes)}; there must be one for each of {len(operator.outputs)}"
            f" results, and they must add up to {shape[axis]}"
        )
    first = len(shape) == 4 and low.channels_first([x])
    for y, size in zip(operator.outputs, sizes, strict=True):
        same_parameters(low, [x], y)
        slices = [
            _portable_slice(d, at, at + size) if i == axis else _portable_slice(d)
            for i, d in enumerate(shape)
        ]
        low.give(y, _sliced(low, x, slices, first), first)
        at += size


def split(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SPLIT. It splits an axis into equal parts."""
    number, x = operator.inputs[:2]
    (axis,), shape, count = low.numbers(number, "axis"), low.shape(x), operator.options["num_splits"]
    axis = axis_of(operator, axis, len(shape))
    if not 0 < count <= MOST_PARTS or shape[axis] % count:
        raise ModelError(f"{operator}: {shape} cannot be split into {count} equal parts along axis {axis}")
    _cut(low, operator, x, axis, [shape[axis] // count] * count)


def split_v(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SPLIT_V. It splits an axis into parts of given sizes; a size of -1 means the remaining
    elements."""
    x, shape = operator.inputs[0], low.shape(operator.inputs[0])
    sizes, (axis,) = low.numbers(operator.inputs[1], "sizes"), low.numbers(operator.inputs[2], "axis")
    axis = axis_of(operator, axis, len(shape))
    rest = shape[axis] - sum(s for s in sizes if s != -1)
    _cut(low, operator, x, axis, [rest if s == -1 else s for s in sizes])


def pack(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower PACK. It joins tensors along a new axis."""
    y, shape = operator.outputs[0], low.shape(operator.inputs[0])
    same_parameters(low, operator.inputs, y)
    axis = axis_of(operator, operator.options["axis"], len(shape) + 1)
    wide = (*shape[:axis], 1, *shape[axis:])
    if any(low.shape(n) != shape for n in operator.inputs):
        raise ModelError(
            f"{operator}: its inputs have shapes {[low.shape(n) for n in operator.inputs]}; use one shape"
        )
    names = [low.reshape(low.last_of(n), wide) for n in operator.inputs]
    low.give(y, low.emit("Concat", names, axis=axis))


def unpack(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower UNPACK. Each result is one slice along an axis, without this axis."""
    x, shape = operator.inputs[0], low.shape(operator.inputs[0])
    axis = axis_of(operator, operator.options["axis"], len(shape))
    if len(operator.outputs) != shape[axis] or shape[axis] > MOST_PARTS:
        raise ModelError(
            f"{operator}: it has {len(operator.outputs)} results for axis {axis} of {shape}; there must be"
            f" one for each index, and at most {MOST_PARTS}"
        )
    for at, y in enumerate(operator.outputs):
        same_parameters(low, [x], y)
        slices = [
            _portable_slice(d, at, at + 1) if i == axis else _portable_slice(d) for i, d in enumerate(shape)
        ]
        name = _sliced(low, x, slices, False)
        low.give(y, low.reshape(name, (*shape[:axis], *shape[axis + 1 :])))


def gather(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower GATHER along an axis. If the first b axes are batches (``batch_dims``), each element of a batch
    has indices of its own. Then the batches and the gathered axis become one axis of rows."""
    x, places, y = *operator.inputs[:2], operator.outputs[0]
    same_parameters(low, [x], y)
    shape, ids = low.shape(x), low.shape(places)
    axis, b = axis_of(operator, operator.options["axis"], len(shape)), operator.options["batch_dims"]
    b += len(ids) * (b < 0)
    name, at = low.last_of(x), low.last_of(places)
    if not b:
        return low.give(y, low.emit("Gather", [name, at], axis=axis))
    if not 0 < b <= min(axis, len(ids)) or shape[:b] != ids[:b]:
        raise ModelError(
            f"{operator}: the first {b} axes (batches) of {shape} and indices {ids} must be equal"
        )
    between, inner = range(b, axis), range(axis + 1, len(shape))
    name = low.emit("Transpose", [name], perm=(*range(b), axis, *between, *inner)) if axis > b else name
    count, size = math.prod(shape[:b]), shape[axis]
    name = low.reshape(name, (count * size, *(shape[i] for i in (*between, *inner))))
    first = (np.arange(count) * size).reshape(*shape[:b], *(1,) * (len(ids) - b)).astype(low.dtype(places))
    name = low.emit("Gather", [name, low.emit("Add", [at, low.constant(first, "rows")])], axis=0)
    if axis > b:  # the axes between the batches and the gathered axis come before the indices
        middle, end = len(ids), len(ids) + axis - b
        perm = (*range(b), *range(middle, end), *range(b, middle), *range(end, end + len(inner)))
        name = low.emit("Transpose", [name], perm=perm)
    return low.give(y, name)


def embedding(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower EMBEDDING_LOOKUP. It selects rows of a table by index. If the table is 8-bit and the result is
    float, the table has one scale for each row, or one for all rows."""
    (places, table), y = operator.inputs[:2], operator.outputs[0]
    tensor, at = low.tensor(table), low.last_of(places)
    name = low.emit("Gather", [low.last_of(table), at], axis=0)
    if tensor.dtype == low.dtype(y):
        same_parameters(low, [table], y)
        return low.give(y, name)
    rows, rank = low.shape(table)[0], len(low.shape(table))
    if tensor.dtype not in BYTES or tensor.scales.size not in (1, rows) or tensor.zero_points.any():
        raise Unsupported(
            f"its table is {tensor.dtype} with {tensor.scales.size} scales and its result {low.dtype(y)}; it"
            f" must be 8-bit with 1 or {rows} scales, without zero points"
        )
    name = low.emit("Cast", [name], to="float32")
    if tensor.scales.size == 1:
        return low.give(y, low.emit("Mul", [name, low.constant(tensor.scales.reshape(()), "scale")]))
    if tensor.axis:
        raise Unsupported(f"its table {tensor.name!r} is quantized along axis {tensor.axis}, not 0")
    scales = low.constant(tensor.scales.reshape(-1, *(1,) * (rank - 1)), "scales")
    return low.give(y, low.emit("Mul", [name, low.emit("Gather", [scales, at], axis=0)]))


def gather_nd(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower GATHER_ND. It selects elements or slices at constant indices."""
    x, y = operator.inputs[0], operator.outputs[0]
    same_parameters(low, [x], y)
    places, shape = low.array(operator.inputs[1], "places"), low.shape(x)
    depth = places.shape[-1] if places.ndim else 0
    if not 0 < depth <= len(shape) or places.dtype.kind not in "iu":
        raise ModelError(
            f"{operator}: its indices are {places.dtype}{list(places.shape)} and x has shape {shape}; they"
            f" must be integers, with 1 to {len(shape)} along the last axis"
        )
    taken = shape[:depth]
    if not ((places >= 0) & (places < np.array(taken))).all():
        raise ModelError(f"{operator}: an index is outside of x; the indexed axes have sizes {taken}")
    flat = np.ravel_multi_index(tuple(np.moveaxis(places, -1, 0)), taken)
    name = low.reshape(low.last_of(x), (int(np.prod(taken)), *shape[depth:]))
    low.give(y, low.emit("Gather", [name, low.constant(flat.astype(np.int64), "places")], axis=0))


def tile(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower TILE."""
    x, y = operator.inputs[0], operator.outputs[0]
    same_parameters(low, [x], y)
    counts = low.constant(np.array(low.numbers(operator.inputs[1], "counts"), np.int64), "counts")
    low.give(y, low.emit("Tile", [low.last_of(x), counts]))


def broadcast_to(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower BROADCAST_TO."""
    x, y = operator.inputs[0], operator.outputs[0]
    same_parameters(low, [x], y)
    shape = low.constant(np.array(low.numbers(operator.inputs[1], "shape"), np.int64), "shape")
    low.give(y, low.emit("Expand", [low.last_of(x), shape]))


def blocks(op: str) -> Rule:
    """Return a rule for DEPTH_TO_SPACE or SPACE_TO_DEPTH. Of the two tensors, let C be the channels of the
    one with fewer. Channel i of the other tensor holds channel i % C at position i // C of the block."""

    def rule(low: Lowering, operator: FileOperator, activation: str) -> None:
        x, y = operator.inputs[0], operator.outputs[0]
        same_parameters(low, [x], y)
        low.give(y, low.emit(op, [low.first_of(x)], blocksize=operator.options["block_size"]), first=True)

    return rule


def shape_of(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SHAPE. Its result is a constant."""
    y = operator.outputs[0]
    low.give(y, low.constant(np.array(low.shape(operator.inputs[0]), low.dtype(y)), "shape"))


def rank_of(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower RANK. Its result is a constant."""
    rank = np.array(len(low.shape(operator.inputs[0])), low.dtype(operator.outputs[0]))
    low.give(operator.outputs[0], low.constant(rank, "rank"))


def zeros_like(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower ZEROS_LIKE. Its result is a constant."""
    zero, shape = np.zeros((), low.dtype(operator.outputs[0])), np.array(low.shape(operator.inputs[0]))
    names = [low.constant(zero, "zero"), low.constant(shape.astype(np.int64), "shape")]
    low.give(operator.outputs[0], low.emit("Expand", names))


def range_of(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower RANGE of constants. Its result is a constant."""
    ends = [low.array(n, what) for n, what in zip(operator.inputs, ("start", "end", "step"), strict=True)]
    names = [low.constant(v.reshape(()), "range") for v in ends]
    low.give(operator.outputs[0], low.emit("Range", names))


RULES: dict[str, Rule] = {
    "STRIDED_SLICE": strided_slice, "SLICE": slice_, "SPLIT": split, "SPLIT_V": split_v, "PACK": pack,
    "UNPACK": unpack, "GATHER": gather, "EMBEDDING_LOOKUP": embedding, "GATHER_ND": gather_nd,
    "TILE": tile, "BROADCAST_TO": broadcast_to, "SHAPE": shape_of, "RANK": rank_of,
    "ZEROS_LIKE": zeros_like, "RANGE": range_of,
    "DEPTH_TO_SPACE": blocks("DepthToSpace"), "SPACE_TO_DEPTH": blocks("SpaceToDepth"),
}  # fmt: skip
