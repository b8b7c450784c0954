"""Normalizations and norms, in the steps that ONNX defines them by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph.graph import Node
from .foreign import unknown
from .reading import Reading, Spelling, attributes_as_inputs


def norm(square: bool, root: bool) -> Spelling:
    """ReduceL1, ReduceL2 and ReduceSumSquare are sums of magnitudes or squares."""

    def rule(reading: Reading, node: Node) -> None:
        x = node.inputs[0]
        each = reading.emit(node, "Mul", [x, x]) if square else reading.emit(node, "Abs", [x])
        total = reading.fresh(f"{node.outputs[0]}/sum") if root else node.outputs[0]
        summed = Node("ReduceSum", (each, *node.inputs[1:]), (total,), node.attributes, node.source)
        attributes_as_inputs("axes")(reading, summed)
        if root:
            reading.emit(node, "Sqrt", [total], node.outputs[0])

    return rule


def _normal(reading: Reading, node: Node, x: str, axes: Sequence[int]) -> str:
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) in the type of x, the means along these axes."""
    along = reading.constant(np.array(axes), f"{node.outputs[0]}/axes")
    epsilon = np.float32(node.attributes.get("epsilon", 1e-5))
    apart = reading.emit(node, "Sub", [x, reading.emit(node, "ReduceMean", [x, along])])
    variance = reading.emit(node, "ReduceMean", [reading.emit(node, "Mul", [apart, apart]), along])
    small = reading.emit(node, "CastLike", [reading.constant(epsilon, f"{node.outputs[0]}/epsilon"), x])
    moved = reading.emit(node, "Add", [variance, small])
    return reading.emit(node, "Div", [apart, reading.emit(node, "Sqrt", [moved])])


def layer_normalization(reading: Reading, node: Node) -> None:
    """In float32 up to the scale, whatever the type of x, as ``stash_type`` says; 0 says in x's own."""
    axis = int(node.attributes.get("axis", -1))
    if axis >= 0 or len(node.outputs) > 1:
        reading.nodes.append(unknown(node, "", reading.opset))  # how many axes there are is not known here
        return
    x, bias = node.inputs[0], node.input(2)
    wide = reading.emit(node, "Cast", [x], to="float32") if node.attributes.get("stash_type", 1) else x
    normal = _normal(reading, node, wide, range(axis, 0))
    normal = reading.emit(node, "CastLike", [normal, x]) if wide != x else normal
    scaled = reading.emit(node, "Mul", [normal, node.inputs[1]], "" if bias else node.outputs[0])
    if bias:
        reading.emit(node, "Add", [scaled, bias], node.outputs[0])


def instance_normalization(reading: Reading, node: Node) -> None:
    """Each channel of each image by itself: its pixels as one axis."""
    flat = reading.constant(np.array([0, 0, -1]), f"{node.outputs[0]}/flat")
    normal = _normal(reading, node, reading.emit(node, "Reshape", [node.inputs[0], flat]), [-1])
    last = reading.constant(np.array([1]), f"{node.outputs[0]}/last")
    scale, bias = (reading.emit(node, "Unsqueeze", [name, last]) for name in node.inputs[1:3])
    y = reading.emit(node, "Add", [reading.emit(node, "Mul", [normal, scale]), bias])
    shape = reading.emit(node, "Shape", node.inputs[:1])
    reading.emit(node, "Reshape", [y, shape], node.outputs[0], allowzero=1)
