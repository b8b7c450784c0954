"""Rewrites normalizations and norms as the simpler operators of ONNX's definitions."""

from __future__ import annotations

import numpy as np

from ..graph.graph import Node
from .reading import Reading, Spelling, attributes_as_inputs
from .unknown_operators import unknown


def norm(square: bool, root: bool) -> Spelling:
    """Return a rewrite rule for ReduceL1, ReduceL2 and ReduceSumSquare. *square*: add squares instead of
    absolute values. *root*: return the square root of the sum."""

    def rule(reading: Reading, node: Node) -> None:
        x = node.inputs[0]
        each = reading.emit(node, "Mul", [x, x]) if square else reading.emit(node, "Abs", [x])
        total = reading.fresh(f"{node.outputs[0]}/sum") if root else node.outputs[0]
        summed = Node("ReduceSum", (each, *node.inputs[1:]), (total,), node.attributes, node.source)
        attributes_as_inputs("axes")(reading, summed)
        if root:
            reading.emit(node, "Sqrt", [total], node.outputs[0])

    return rule


def normal(
    reading: Reading, node: Node, x: str, axis: int, function: str = "normalize", otherwise: float = 1e-5
) -> str:
    """Emit a normalization of x over the axes from *axis* on; return the result's name. "normalize"
    subtracts the mean and divides by the standard deviation. "normalize_root" divides by the root of the
    mean square. *otherwise*: the default of the attribute ``epsilon``."""
    epsilon = float(np.float32(node.attributes.get("epsilon", otherwise)))
    return reading.emit(node, "Normalization", [x], function=function, axis=axis, epsilon=epsilon)


def layer_normalization(reading: Reading, node: Node) -> None:
    """Rewrite LayerNormalization or RMSNormalization. The normalization before the scale is computed in
    float32, or in the type of x if ``stash_type`` is 0."""
    if len(node.outputs) > 1:
        reading.nodes.append(unknown(node, "", reading.opset))
        return
    x, bias = node.inputs[0], node.input(2)
    wide = reading.emit(node, "Cast", [x], to="float32") if node.attributes.get("stash_type", 1) else x
    function = "normalize" if node.op == "LayerNormalization" else "normalize_root"
    y = normal(reading, node, wide, int(node.attributes.get("axis", -1)), function)
    y = reading.emit(node, "CastLike", [y, x]) if wide != x else y
    scaled = reading.emit(node, "Mul", [y, node.inputs[1]], "" if bias else node.outputs[0])
    if bias:
        reading.emit(node, "Add", [scaled, bias], node.outputs[0])


def instance_normalization(reading: Reading, node: Node) -> None:
    """Rewrite InstanceNormalization: normalize the pixels of each channel of each image."""
    flat = reading.constant(np.array([0, 0, -1]), f"{node.outputs[0]}/flat")
    y = normal(reading, node, reading.emit(node, "Reshape", [node.inputs[0], flat]), -1)
    _scaled(reading, node, y)


def group_normalization(reading: Reading, node: Node) -> None:
    """Rewrite GroupNormalization: normalize all pixels of a group of channels together. From opset 21 on,
    each channel has a scale and a bias; before opset 21, each group has them."""
    groups = int(node.attributes["num_groups"])
    flat = reading.constant(np.array([0, groups, -1]), f"{node.outputs[0]}/flat")
    y = normal(reading, node, reading.emit(node, "Reshape", [node.inputs[0], flat]), -1)
    scale = reading.constants.get(node.inputs[1])
    if reading.opset >= 21 and scale is None:
        shape = reading.emit(node, "Shape", node.inputs[:1], start=0, end=2)
        rest = reading.constant(np.array([-1]), f"{node.outputs[0]}/rest")
        y = reading.emit(node, "Reshape", [y, reading.emit(node, "Concat", [shape, rest], axis=0)])
    elif reading.opset >= 21 and scale is not None:
        channels = reading.constant(np.array([0, scale.size, -1]), f"{node.outputs[0]}/channels")
        y = reading.emit(node, "Reshape", [y, channels])
    _scaled(reading, node, y)


def _scaled(reading: Reading, node: Node, y: str) -> None:
    """Emit y * scale + bias, reshaped to the shape of the node's input. y is (N, C, pixels)."""
    last = reading.constant(np.array([1]), f"{node.outputs[0]}/last")
    scale, bias = (reading.emit(node, "Unsqueeze", [name, last]) for name in node.inputs[1:3])
    y = reading.emit(node, "Add", [reading.emit(node, "Mul", [y, scale]), bias])
    shape = reading.emit(node, "Shape", node.inputs[:1])
    reading.emit(node, "Reshape", [y, shape], node.outputs[0], allowzero=1)
