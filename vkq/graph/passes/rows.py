"""Rewrites float reductions, softmax and normalizations as functions of rows, each of which a device computes
in one dispatch (`vkq.kernels.rows`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...kernels.rows import MOST_LENGTH
from ...numerics.rows import FUNCTIONS
from ..graph import Graph, Node
from ..operators.number import reduced
from ..operators.operator import axis_of
from .sweep import Sweep, scalar, swept

SOFTMAX = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}


def find_normalizations(graph: Graph) -> Graph:
    """Replace the nodes of (x - mean) / sqrt(mean((x - mean)^2) + epsilon) over the last axes by one
    Normalization."""
    return swept(graph, _spelled_out, "Div")


def _spelled_out(sweep: Sweep, node: Node) -> bool:
    apart, root = node.inputs
    made, moved = sweep.producer(apart, "Sub"), sweep.producer(root, "Sqrt")
    more = sweep.producer(moved.inputs[0], "Add") if moved is not None else None
    if made is None or more is None or sweep.specs[apart].dtype != "float32":
        return False
    x, mean = made.inputs[0], _last_mean(sweep, made.inputs[1])
    for name, other in (more.inputs, more.inputs[::-1]):
        epsilon, variance = scalar(sweep.array(other)), _last_mean(sweep, name)
        if epsilon is None or variance is None or mean is None:
            continue
        if mean == (x, variance[1]) and _is_square(sweep, variance[0], apart):
            attributes = {"function": "normalize", "axis": mean[1], "epsilon": float(epsilon)}
            sweep.emit("Normalization", [x], node.outputs[0], node.source, **attributes)
            return True
    return False


def _last_mean(sweep: Sweep, name: str) -> tuple[str, int] | None:
    """Return (x, first axis) if a value is the mean of x over its last axes, from *first axis* on, and keeps
    these axes with length 1. Return None for other values."""
    made = sweep.producer(name, "ReduceMean") if name else None
    if made is None or not made.attributes.get("keepdims", 1):
        return None
    rank, listed = (
        len(sweep.specs[made.inputs[0]].shape),
        sweep.array(made.input(1)) if made.input(1) else None,
    )
    if listed is None:
        return None
    axes = reduced(made, rank, [int(a) for a in listed.reshape(-1)])
    return (made.inputs[0], axes[0]) if axes and axes == tuple(range(axes[0], rank)) else None


def _is_square(sweep: Sweep, name: str, of: str) -> bool:
    made = sweep.producer(name, "Mul", "Pow")
    if made is None:
        return False
    if made.op == "Mul":
        return made.inputs == (of, of)
    return made.inputs[0] == of and scalar(sweep.array(made.inputs[1])) == 2


def to_rows(graph: Graph) -> Graph:
    """Replace reductions and softmax of floats by functions of rows."""
    return swept(graph, _visit, *SOFTMAX, "Normalization", "GlobalAveragePool", *FUNCTIONS)


def by_last_axis(sweep: Sweep, node: Node) -> bool:
    """Return True if the function *node* works on rows along the last axis and keeps the shape of its
    input."""
    a, shape = node.attributes, sweep.specs[node.outputs[0]].shape
    axes = range(a["axis"], a["axis"] + a["count"])
    return FUNCTIONS[a["function"]].each is not None and _last_alone(axes, shape)


def _last_alone(axes: Sequence[int], shape: Sequence[int]) -> bool:
    return tuple(axes) == (len(shape) - 1,)


def whole_words(sweep: Sweep, name: str) -> bool:
    """Return True if the value *name*, stored in 8 bits, is a matrix whose rows fill whole 32-bit words."""
    shape = sweep.specs[name].shape
    return len(shape) != 4 and bool(shape) and shape[-1] % 4 == 0


def _visit(sweep: Sweep, node: Node) -> bool:
    if not node.inputs or node.inputs[0] not in sweep.specs:
        return False
    spec = sweep.specs[node.inputs[0]]
    rank = len(spec.shape)
    if spec.dtype not in ("float32", "float16") or 0 in spec.shape:
        return False
    if node.op in SOFTMAX:
        return _emit(sweep, node, SOFTMAX[node.op], (axis_of(node, rank, -1),), True)
    if node.op == "Normalization":
        last = range(axis_of(node, rank, -1), rank)
        return _emit(sweep, node, node.attributes["function"], last, True)
    if node.op == "GlobalAveragePool":
        return _emit(sweep, node, "ReduceMean", range(2, rank), True)
    if node.input(1) and sweep.array(node.input(1)) is None:
        return False
    listed = sweep.array(node.input(1)) if node.input(1) else None
    axes = reduced(node, rank, None if listed is None else [int(a) for a in listed.reshape(-1)])
    return bool(axes) and _emit(sweep, node, node.op, axes, bool(node.attributes.get("keepdims", 1)))


def _emit(sweep: Sweep, node: Node, function: str, axes: Sequence[int], keep: bool) -> bool:
    x, shape, source = node.inputs[0], sweep.specs[node.inputs[0]].shape, node.source
    each, dtype = FUNCTIONS[function].each is not None, sweep.specs[x].dtype
    if not axes or int(np.prod([shape[i] for i in axes])) > MOST_LENGTH:
        return False
    kept = [i for i in range(len(shape)) if i not in axes]
    if axes[-1] - axes[0] + 1 != len(axes):  # the reduced axes are not neighbours: move them to the end
        x, axes = (
            sweep.emit("Transpose", [x], source=source, perm=(*kept, *axes)),
            range(len(kept), len(shape)),
        )
    if dtype == "float16":
        x = sweep.emit("Cast", [x], source=source, to="float32")
    attributes: dict[str, Any] = {"function": function, "axis": axes[0], "count": len(axes)}
    attributes["epsilon"] = float(node.attributes.get("epsilon", 0.0))
    made = sweep.producer(x, "dequantize")
    if made is not None and each and _last_alone(axes, shape) and whole_words(sweep, made.inputs[0]):
        x, attributes["x"] = made.inputs[0], made.attributes["x"]
    last = each or not keep
    output = node.outputs[0] if last and dtype == "float32" else ""
    y = sweep.emit("rows", [x], output, source, **attributes)
    if dtype == "float16":
        y = sweep.emit("Cast", [y], node.outputs[0] if last else "", source, to="float16")
    if not last:
        whole = [d if i in kept else 1 for i, d in enumerate(shape)]
        sweep.reshape(y, whole, node.outputs[0], source)
    return True
