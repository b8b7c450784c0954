"""Replaces float convolutions and products with constant float weights by layers of the schemes f32 and
f16.

Run the pass after the passes for quantized operators. By then, constants with a quantization that vkq's
layers do not support have been folded to floats."""

from __future__ import annotations

import numpy as np

from ..graph import Array, Graph, Node
from ..operators.number import conv_options, transposed_options
from .integers import bounded_layer
from .layers import FLOATS, of_floats
from .sweep import Sweep, swept


def to_float_layers(graph: Graph) -> Graph:
    """Replace float convolutions and products by layers. A Relu or Clip after a layer becomes the layer's
    ``activation`` bounds."""
    return swept(graph, _visit, "Relu", "Clip", "Conv", "ConvTranspose", "MatMul", "Gemm")


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op in ("Relu", "Clip"):
        return bounded_layer(sweep, node)
    weight = sweep.array(node.inputs[1])
    if weight is None or weight.dtype.name not in FLOATS:
        return False
    if node.op in ("MatMul", "Gemm"):
        return _product(sweep, node, weight)
    shapes = sweep.specs[node.inputs[0]].shape, weight.shape
    if len(shapes[0]) != 4:
        return False
    if node.op == "Conv":
        options, op, channels = conv_options(node, *shapes), "conv2d", len(weight)
    else:
        options, op = transposed_options(node, *shapes), "conv_transpose2d"
        channels = weight.shape[1] * options["groups"]
    return of_floats(sweep, node, op, (weight, None, None), channels, **options)


def _product(sweep: Sweep, node: Node, weight: Array) -> bool:
    a = node.attributes
    other = a.get("alpha", 1.0) != 1.0 or (a.get("beta", 1.0) != 1.0 and node.input(2)) or a.get("transA", 0)
    if weight.ndim != 2 or len(sweep.specs[node.inputs[0]].shape) < 2 or other:
        return False
    weight = weight if a.get("transB", 0) else np.ascontiguousarray(weight.T)
    return of_floats(sweep, node, "linear", (weight, None, None), len(weight))
