"""Rewrites operators that find or sort the largest elements: ArgMax, ArgMin, Hardmax, TopK."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ...kernels.lines import beyond
from ...kernels.rows import MOST_LENGTH
from ..graph import Node
from ..operators.movement import moves
from ..operators.operator import axis_of
from .links import BYTES
from .ranges import Range
from .words import FLOATS, INTEGERS, Words

MOST_EXACT = 1 << 24  # float32 represents every integer from 0 to this value


def _dequantized(w: Words, name: str) -> bool:
    """Return True if a value is dequantized, perhaps with movements after the dequantize. A later pass
    then compares the 8-bit elements."""
    made = w.sweep.producer(name)
    while made is not None and moves(made):
        made = w.sweep.producer(made.inputs[0])
    return made is not None and made.op in ("DequantizeLinear", "dequantize")


def _extreme_index(w: Words, axis: int, smallest: bool, last: bool) -> str:
    """Emit nodes that compute, as float32, the index of the largest element (*smallest*: the smallest
    element) along an axis; the axis keeps length 1. Return the result's name. Of equal elements the first is
    chosen (*last*: the last). If any element is NaN, the index is the first (*last*: the last) of the
    axis."""
    x, spec = w.node.inputs[0], w.spec(0)
    rank, length = len(spec.shape), spec.shape[axis]
    kept = tuple(1 if i == axis else d for i, d in enumerate(spec.shape))
    function = "ReduceMin" if smallest else "ReduceMax"
    if spec.dtype in INTEGERS:
        best = w.emit(function, [x, w.constant([axis], "int64")], keepdims=1)
    else:
        x = w.wide(x)
        best = w.reshape(w.rows(function, x, axis), kept)
    apart = w.emit("Less", [best, x] if smallest else [x, best])
    line = w.along(np.arange(length), axis, rank, "float32")
    beyond_all = w.constant(-1.0 if last else float(length), "float32")
    places = w.emit("Where", [apart, beyond_all, line])
    return w.reshape(w.rows("ReduceMax" if last else "ReduceMin", places, axis), kept)


def _can(w: Words, axis: int, *dtypes: str) -> bool:
    spec = w.spec(0)
    length = spec.shape[axis] if spec.shape else 0
    return (
        spec.dtype in (*FLOATS, *dtypes) and 0 not in spec.shape and 0 < length < min(MOST_EXACT, MOST_LENGTH)
    )


def arg_max(w: Words) -> bool:
    shape = w.spec(0).shape
    axis = axis_of(w.node, len(shape), int(w.attributes.get("axis", 0)), "")
    if not _can(w, axis, *INTEGERS, *BYTES):
        return False
    ends = 0, shape[axis] - 1
    if w.spec(0).dtype in BYTES or _dequantized(w, w.node.inputs[0]):
        return w.node.op != "foreign" and _later(w, ends)
    op = w.attributes.get("op", w.node.op)
    place = _extreme_index(w, axis, op == "ArgMin", bool(w.attributes.get("select_last_index", 0)))
    whole = w.cast(place, "int32", range=ends)
    kept = w.attributes.get("keepdims", 1)
    if not kept:
        whole = w.reshape(whole, (*shape[:axis], *shape[axis + 1 :]))
    w.cast(whole, "int64", w.node.outputs[0])
    return True


def _later(w: Words, ends: Range) -> bool:
    """Keep an ArgMax of 8-bit values for a later pass, and state the range of its result by a Cast: int64
    arithmetic on indices of unknown range could not become int32."""
    name = w.sweep.fresh(f"{w.node.outputs[0]}/{w.node.op}")
    w.sweep.keep(dataclasses.replace(w.node, outputs=(name,)))
    w.cast(w.cast(name, "int32", range=ends), "int64", w.node.outputs[0])
    return True


def hardmax(w: Words) -> bool:
    """Rewrite Hardmax: 1 at the first of the largest elements, and 0 at all others."""
    spec = w.spec(0)
    earlier = w.node.op == "foreign" and (w.node.attributes["opset"] or 13) < 13
    axis = axis_of(w.node, len(spec.shape), int(w.attributes.get("axis", 1 if earlier else -1)), "")
    # Before opset 13, the axes from *axis* on count as one axis.
    if not _can(w, axis) or (earlier and axis + 1 < len(spec.shape)):
        return False
    line = w.along(np.arange(spec.shape[axis]), axis, len(spec.shape), "float32")
    same = w.emit("Equal", [line, _extreme_index(w, axis, False, False)])
    w.cast(same, spec.dtype, w.node.outputs[0])
    return True


def top_k(w: Words) -> bool:
    """TopK: move the axis to the end, and select the largest (or smallest) elements of each row."""
    spec, count = w.spec(0), w.given(1)
    if "k" in w.attributes:  # before opset 10
        count = np.array(w.attributes["k"])
    if count is None or spec.dtype not in FLOATS or not spec.shape or 0 in spec.shape:
        return False
    rank, k = len(spec.shape), int(count.reshape(-1)[0])
    axis = axis_of(w.node, rank, int(w.attributes.get("axis", -1)), "")
    length, lines = spec.shape[axis], math.prod(spec.shape) // spec.shape[axis]
    if beyond(lines * length, length) or not 0 < k <= length:
        return False
    perm = (*(i for i in range(rank) if i != axis), axis)
    back = tuple(int(i) for i in np.argsort(perm))
    moved = w.wide(w.emit("Transpose", [w.node.inputs[0]], perm=perm))
    flat = w.reshape(moved, (lines, length))
    names = [w.sweep.fresh(f"{w.node.outputs[0]}/topk") for _ in range(2)]
    attributes = {"k": k, "largest": int(w.attributes.get("largest", 1)), "range": (0, length - 1)}
    w.visit(Node("topk", (flat,), tuple(names), attributes, w.node.source))
    shape = (*(spec.shape[i] for i in perm[:-1]), k)
    for name, output, dtype in zip(names, w.node.outputs, (spec.dtype, "int64"), strict=False):
        if output:
            turned = w.emit("Transpose", [w.reshape(name, shape)], perm=back)
            w.cast(turned, dtype, output)
    return True
