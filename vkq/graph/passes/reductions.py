"""Rewrites reductions along any axes. A mean or a maximum becomes a pool of images whose pixels are the
reduced elements. A sum becomes a product with ones.

A mean without a quantize after it also becomes a product with ones: the sum is exact, and one float32
multiplication by x_scale / count follows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...numerics.qparams import QParams
from ..graph import Graph, Node
from ..operators.number import reduced
from .sweep import Sweep, swept

POOLS = ("ReduceMean", "ReduceMax")
REAL = ("float32", "int8", "uint8")


def as_pool(sweep: Sweep, node: Node) -> bool:
    """Replace ReduceMean by GlobalAveragePool, and ReduceMax by a MaxPool with one window over the whole
    image."""
    spec, axes = sweep.specs[node.inputs[0]], _axes(sweep, node)
    if not axes or spec.dtype not in REAL or 0 in spec.shape:
        return False
    x = (
        node.inputs[0]
        if axes == (2, 3) and len(spec.shape) == 4
        else _pixels(sweep, node.inputs[0], axes, node)
    )
    if node.op == "ReduceMean":
        pooled = sweep.emit("GlobalAveragePool", [x], source=node.source)
    else:
        pooled = sweep.emit("MaxPool", [x], source=node.source, kernel_shape=sweep.specs[x].shape[2:])
    sweep.reshape(pooled, _result(spec.shape, axes, node), node.outputs[0], node.source)
    return True


def _axes(sweep: Sweep, node: Node) -> tuple[int, ...] | None:
    """Return the axes of a reduction; None if they are computed at run time."""
    listed = sweep.array(node.input(1)) if node.input(1) else None
    if node.input(1) and listed is None:
        return None
    given = None if listed is None else [int(a) for a in listed.reshape(-1)]
    return reduced(node, len(sweep.specs[node.inputs[0]].shape), given)


def _result(shape: Sequence[int], axes: Sequence[int], node: Node) -> tuple[int, ...]:
    kept = [1 if i in axes else d for i, d in enumerate(shape)]
    return tuple(d for i, d in enumerate(kept) if node.attributes.get("keepdims", 1) or i not in axes)


def _pixels(sweep: Sweep, x: str, axes: Sequence[int], node: Node) -> str:
    """Emit a Transpose and a Reshape of x to (1, kept elements, 1, reduced elements): each kept element is
    a channel. Return the result's name."""
    shape = sweep.specs[x].shape
    kept = [i for i in range(len(shape)) if i not in axes]
    perm = (*kept, *axes)
    if perm != tuple(range(len(shape))):
        x = sweep.emit("Transpose", [x], source=node.source, perm=perm)
    count = int(np.prod([shape[i] for i in axes]))
    return sweep.reshape(x, (1, int(np.prod([shape[i] for i in kept])), 1, count), source=node.source)


def summed(sweep: Sweep, node: Node, x: str, q: QParams) -> bool:
    """Replace ReduceSum of a dequantized value by a product with ones. *x* is the 8-bit value, *q* its
    parameters."""
    axes = _axes(sweep, node)
    if not axes or 0 in sweep.specs[x].shape:
        return False
    _product(sweep, node, x, q, axes, 1.0)
    return True


def _product(sweep: Sweep, node: Node, x: str, q: QParams, axes: Sequence[int], factor: float) -> None:
    shape = _result(sweep.specs[x].shape, axes, node)
    pixels = _pixels(sweep, x, axes, node)
    _, rows, _, count = sweep.specs[pixels].shape
    ones = sweep.constant(np.ones((1, count), np.int8), "ones")
    matrix = sweep.reshape(pixels, (rows, count), source=node.source)
    y = sweep.emit(
        "linear", [matrix, ones], source=node.source, x=q, y=None,
        w_scale=np.array([factor], np.float32), w_zero_point=None, activation=None,
    )  # fmt: skip
    sweep.reshape(y, shape, node.outputs[0], node.source)


def to_sums(graph: Graph) -> Graph:
    """Replace each GlobalAveragePool of a dequantized value by a product with ones. Earlier passes have
    replaced each GlobalAveragePool whose result is quantized."""

    def visit(sweep: Sweep, node: Node) -> bool:
        made = sweep.producer(node.inputs[0], "dequantize")
        if made is None:
            return False
        x, q = made.inputs[0], made.attributes["x"]
        shape = sweep.specs[x].shape
        if len(shape) < 3 or 0 in shape:
            return False
        _product(sweep, node, x, q, range(2, len(shape)), 1 / int(np.prod(shape[2:])))
        return True

    return swept(graph, visit, "GlobalAveragePool")
