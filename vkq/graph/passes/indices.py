"""Rewrites operators that read or write elements by index (GatherND, ScatterElements, OneHot, ...). Index
arithmetic computes row numbers, and one Gather reads the rows, or one scatter writes them.

A constant index out of range is refused. An index computed at run time is clamped to the axis. If a model
input has the indices, this input is checked at each run (attribute ``within``: see `types`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ...errors import ModelError
from ...kernels.lines import beyond
from ..operators.operator import axis_of
from ..operators.scatter import REDUCTIONS, TYPES
from .words import FLOATS, INTEGERS, Words

WORDS = ("float32", "int32", "int64")  # types whose elements are one 32-bit word on a device


def _positions(w: Words, ids: str, sizes: Sequence[int]) -> str:
    """Emit nodes that make the indices *ids* non-negative and clamp them to the axes. Return the result's
    name. ids[..., i] is an index into an axis of size sizes[i]; if *sizes* has one element, all ids are
    indices into an axis of that size."""
    dtype = w.of(ids).dtype
    size = np.asarray(sizes if len(sizes) > 1 else sizes[0])
    known = w.sweep.array(ids)
    if known is not None and known.size and ((known < -size) | (known >= size)).any():
        raise ModelError(
            f"{w.node}: indices go from {known.min()} to {known.max()}; the axes have sizes {sizes}"
        )
    most = int(size.max())
    inside = w.emit("Max", [ids, w.constant(-size, dtype)], within=(-most, most - 1))
    inside = w.emit("Min", [inside, w.constant(size - 1, dtype)])
    negative = w.emit("Less", [inside, w.constant(0, dtype)])
    return w.emit("Where", [negative, w.emit("Add", [inside, w.constant(size, dtype)]), inside])


def _flat(w: Words, ids: str, sizes: Sequence[int]) -> str:
    """Emit nodes that compute one flat index from each tuple of indices along the last axis of *ids*.
    Return the result's name. *sizes*: the sizes of the indexed axes."""
    at, lead, k = _positions(w, ids, sizes), w.of(ids).shape[:-1], len(sizes)
    total = ""
    for j in range(k):
        one = w.reshape(w.part(at, len(lead), j, j + 1) if k > 1 else at, lead)
        total = one if not total else w.emit("Add", [total, one])
        if j + 1 < k:
            total = w.emit("Mul", [total, w.number(sizes[j + 1], total)])
    return total


def gather_nd(w: Words) -> bool:
    x, ids, b = w.spec(0), w.spec(1), int(w.attributes.get("batch_dims", 0))
    k = ids.shape[-1]
    sizes, inner = x.shape[b : b + k], x.shape[b + k :]
    if not k or 0 in x.shape or 0 in ids.shape:
        return False
    flat = _flat(w, w.node.inputs[1], sizes)
    rows, batch = math.prod(sizes), math.prod(x.shape[:b])
    if b:
        first = np.arange(batch).reshape(*x.shape[:b], *(1,) * (len(ids.shape) - 1 - b)) * rows
        flat = w.emit("Add", [flat, w.constant(first, ids.dtype)])
    lines = w.reshape(w.node.inputs[0], (batch * rows, *inner))
    w.emit("Gather", [lines, flat], w.node.outputs[0], axis=0)
    return True


def gather_elements(w: Words) -> bool:
    x, ids = w.spec(0), w.spec(1)
    axis = axis_of(w.node, len(x.shape), int(w.attributes.get("axis", 0)), "")
    if 0 in x.shape or 0 in ids.shape:
        return False
    flat = _element(w, w.node.inputs[1], x.shape, axis)
    w.emit("Gather", [w.reshape(w.node.inputs[0], (-1,)), flat], w.node.outputs[0], axis=0)
    return True


def _element(w: Words, ids: str, shape: Sequence[int], axis: int) -> str:
    """Emit nodes that compute flat indices into an array of shape *shape*. Return the result's name.
    ids[i, j, ...] is an index along *axis*; along all other axes, the index is the position i, j, ... of the
    id itself."""
    spec = w.of(ids)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    at = _positions(w, ids, [shape[axis]])
    at = w.emit("Mul", [at, w.constant(strides[axis], spec.dtype)])
    own = np.zeros((1,) * len(shape), np.int64)
    for i, d in enumerate(spec.shape):
        if i != axis:
            line = np.arange(d) * strides[i]
            own = own + line.reshape([-1 if j == i else 1 for j in range(len(shape))])
    return w.emit("Add", [at, w.constant(own, spec.dtype)])


def scatter_elements(w: Words) -> bool:
    x, ids = w.spec(0), w.spec(1)
    axis = axis_of(w.node, len(x.shape), int(w.attributes.get("axis", 0)), "")
    flat = _element(w, w.node.inputs[1], x.shape, axis) if 0 not in (*x.shape, *ids.shape) else ""
    return bool(flat) and _scattered(w, flat, 1)


def scatter_nd(w: Words) -> bool:
    x, ids = w.spec(0), w.spec(1)
    k = ids.shape[-1]
    if 0 in (*x.shape, *ids.shape):
        return False
    return _scattered(w, _flat(w, w.node.inputs[1], x.shape[:k]), math.prod(x.shape[k:]))


def _scattered(w: Words, flat: str, inner: int) -> bool:
    """Emit the operator's result: x as rows of *inner* elements, with updates in the rows *flat*."""
    x, reduction = w.spec(0), str(w.attributes.get("reduction", "none"))
    if reduction not in REDUCTIONS or x.dtype not in (*TYPES, "int64", "bool"):
        return False
    rows = w.reshape(w.node.inputs[0], (-1, inner))
    updates = w.reshape(w.node.inputs[2], (-1, inner))
    ids = w.reshape(flat, (-1,))
    known = w.sweep.array(ids)
    if known is not None and reduction == "none":
        return _placed(w, rows, updates, known)
    ids = ids if known is None else w.constant(known, "int32")
    if x.dtype == "bool" or beyond(math.prod(x.shape), w.of(ids).shape[0]):
        return False
    if x.dtype == "float16":
        rows, updates = w.cast(rows, "float32"), w.cast(updates, "float32")
    y = w.emit("scatter", [rows, ids, updates], reduction=reduction)
    y = w.cast(y, "float16") if x.dtype == "float16" else y
    w.reshape(y, x.shape, w.node.outputs[0])
    return True


def _placed(w: Words, rows: str, updates: str, ids: np.ndarray) -> bool:
    """Replace a scatter with constant indices by a Gather from the concatenated rows and updates. If an
    index occurs several times, its last update counts."""
    count, _ = w.of(rows).shape
    places = np.arange(count)
    places[ids] = count + np.arange(ids.size)
    both = w.emit("Concat", [rows, updates], axis=0)
    y = w.emit("Gather", [both, w.constant(places, "int64")], axis=0)
    w.reshape(y, w.spec(0).shape, w.node.outputs[0])
    return True


def tensor_scatter(w: Words) -> bool:
    """TensorScatter: write rows into a cache. Each batch element has its own position in the cache."""
    x, u = w.spec(0), w.spec(1)
    axis = axis_of(w.node, len(x.shape), int(w.attributes.get("axis", -2)), "")
    if 0 in (*x.shape, *u.shape) or not axis:
        return False
    mode, batch, size, count = w.attributes.get("mode"), x.shape[0], x.shape[axis], u.shape[axis]
    start = w.node.input(2) or w.constant(np.zeros(batch), "int64")
    dtype, middle, inner = w.of(start).dtype, math.prod(x.shape[1:axis]), math.prod(x.shape[axis + 1 :])
    if w.sweep.array(start) is None and (x.dtype in WORDS or (x.dtype == "float16" and inner % 2 == 0)):
        if mode == "circular":
            start = w.emit("Mod", [start, w.constant(size, dtype)])
        else:
            start = w.emit("Max", [start, w.constant(0, dtype)], within=(0, size - count))
            start = w.emit("Min", [start, w.constant(size - count, dtype)])
        old, new = (batch, middle, size, inner), (batch, middle, count, inner)
        x4, u4 = w.reshape(w.node.inputs[0], old), w.reshape(w.node.inputs[1], new)
        placed = w.emit("place", [x4, w.reshape(start, (batch,)), u4])
        w.reshape(placed, x.shape, w.node.outputs[0])
        return True
    at = w.emit("Add", [w.reshape(start, (batch, 1, 1)), w.constant(np.arange(count), dtype)])
    if mode == "circular":
        at = w.emit("Mod", [at, w.constant(size, dtype)])
    at = _positions(w, at, [size])
    lines = np.arange(batch * middle).reshape(batch, middle, 1) * size
    flat = w.emit("Add", [at, w.constant(lines, dtype)])
    moved = dataclasses.replace(w.node, inputs=(w.node.inputs[0], start, w.node.inputs[1]))
    order = dataclasses.replace(w, node=moved)
    return _scattered(order, flat, inner)


def one_hot(w: Words) -> bool:
    ids, depth = w.node.inputs[0], w.given(1)
    if depth is None or w.of(ids).dtype not in (*INTEGERS, "float32"):
        return False
    count, rank, dtype = int(depth.reshape(-1)[0]), len(w.of(ids).shape), w.of(ids).dtype
    axis = int(w.attributes.get("axis", -1)) % (rank + 1)
    tall = w.reshape(ids, (*w.of(ids).shape[:axis], 1, *w.of(ids).shape[axis:]))
    off, on = (w.reshape(w.part(w.node.inputs[2], 0, i, i + 1), ()) for i in (0, 1))
    line = np.arange(count)
    same = w.emit("Equal", [tall, w.along(line, axis, rank + 1, dtype)])
    before = w.emit("Equal", [tall, w.along(line - count, axis, rank + 1, dtype)])
    w.emit("Where", [w.emit("Or", [same, before]), on, off], w.node.outputs[0])
    return True


def reverse_sequence(w: Words) -> bool:
    """ReverseSequence: reverse the first n elements of each batch element along ``time_axis``. An input has
    the number n for each batch element."""
    x, lengths = w.spec(0), w.node.inputs[1]
    time, batch = int(w.attributes.get("time_axis", 0)), int(w.attributes.get("batch_axis", 1))
    rank, dtype = len(x.shape), w.of(lengths).dtype
    if 0 in x.shape or {time, batch} != {0, 1}:
        return False
    t = w.along(np.arange(x.shape[time]), time, 2, dtype)
    shape = [1, 1]
    shape[batch] = -1
    length = w.reshape(lengths, shape)
    back = w.emit("Sub", [w.emit("Sub", [length, t]), w.constant(1, dtype)])
    at = _positions(w, w.emit("Where", [w.emit("Less", [t, length]), back, t]), [x.shape[time]])
    step, own = (x.shape[1], 1) if time == 0 else (1, x.shape[1])
    flat = w.emit("Mul", [at, w.constant(step, dtype)])
    flat = w.emit("Add", [flat, w.along(np.arange(x.shape[batch]) * own, batch, 2, dtype)])
    rows = w.reshape(w.node.inputs[0], (-1, *x.shape[2:]))
    assert rank >= 2
    w.emit("Gather", [rows, flat], w.node.outputs[0], axis=0)
    return True


def trilu(w: Words) -> bool:
    """Trilu: keep the elements on or above (or below) a diagonal, and set all others to zero."""
    x, k = w.spec(0), w.node.input(1)
    if x.dtype not in (*FLOATS, *INTEGERS, "bool") or len(x.shape) < 2:
        return False
    rows, columns = x.shape[-2:]
    apart = w.constant(np.arange(columns) - np.arange(rows)[:, None], "int64")
    shift = w.reshape(k, ()) if k else w.constant(0, "int64")
    upper = int(w.attributes.get("upper", 1))
    kept = w.emit("GreaterOrEqual" if upper else "LessOrEqual", [apart, shift])
    if x.dtype == "bool":
        w.emit("And", [w.node.inputs[0], kept], w.node.outputs[0])
        return True
    zero = w.number(0, w.node.inputs[0])
    w.emit("Where", [kept, w.node.inputs[0], zero], w.node.outputs[0])
    return True
