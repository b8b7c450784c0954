"""Rewrites 1-D operators (N, C, L) as operators on images one pixel high, between Reshapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..graph import Node
from .sweep import Sweep

WEIGHTED = ("Conv", "ConvTranspose", "ConvInteger")
FLOATS = ("Conv", "ConvTranspose")
POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
WINDOW = (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 0))


def as_image(sweep: Sweep, node: Node, visit: Callable[[Node], object]) -> bool:
    """Replace a 1-D operator by an image operator between two Reshapes. Return False for any other node.
    *visit* is called for a convolution of images, which it may rewrite."""
    known = node.op in (*WEIGHTED, *POOLS) or (node.op == "Resize" and "axes" not in node.attributes)
    if not known or len(sweep.specs[node.inputs[0]].shape) != 3 or len(node.outputs) > 1:
        return False
    inputs = _inputs(sweep, node)
    if inputs is None:
        return False
    attributes = dict(node.attributes)
    for key, first in WINDOW:
        if key in attributes:
            attributes[key] = (first, *attributes[key])
    if "pads" in attributes:
        attributes["pads"] = (0, attributes["pads"][0], 0, attributes["pads"][1])
    if "output_shape" in attributes:
        attributes["output_shape"] = (1, *attributes["output_shape"][-1:])
    if node.op == "Resize":
        attributes["lines"] = True
    result = sweep.fresh(f"{node.outputs[0]}/image")
    made = Node(node.op, tuple(inputs), (result,), attributes, node.source)
    (visit if node.op in FLOATS else sweep.keep)(made)
    n, c, _, length = sweep.specs[result].shape
    sweep.reshape(result, (n, c, length), node.outputs[0], node.source)
    return True


def _inputs(sweep: Sweep, node: Node) -> list[str] | None:
    """Emit Reshapes that insert an axis of height 1 into the node's inputs. Return the names of the new
    inputs; None if the operator is not 1-D."""
    n, c, length = sweep.specs[node.inputs[0]].shape
    inputs, rest = [node.inputs[0]], list(node.inputs[1:])
    if node.op in WEIGHTED:
        if len(sweep.specs[rest[0]].shape) != 3:
            return None
        rest[0] = _weight(sweep, node, rest[0])
    if node.op == "Resize":
        arrays = [sweep.array(name) if name else None for name in rest[1:]]
        if any(
            array.size not in (0, 3) if array is not None else name
            for name, array in zip(rest[1:], arrays, strict=True)
        ):
            return None
        rest = ["", *("" if a is None or not a.size else sweep.constant(np.insert(a, 2, 1)) for a in arrays)]
    inputs[0] = sweep.reshape(node.inputs[0], (n, c, 1, length), source=node.source)
    return inputs + rest


def _weight(sweep: Sweep, node: Node, name: str) -> str:
    """Insert an axis of height 1 into a weight. Return the result's name. The weight may be constant,
    dequantized or computed."""
    first, second, length = sweep.specs[name].shape
    weight, made = sweep.array(name), sweep.producer(name, "DequantizeLinear")
    if weight is not None:
        return sweep.constant(np.ascontiguousarray(weight[:, :, None]), f"{name}/tall")
    array = sweep.array(made.inputs[0]) if made is not None else None
    axis = int(made.attributes.get("axis", 1)) if made is not None else 2
    axis += 3 if axis < 0 else 0
    if made is None or array is None or axis not in (0, 1) or made.attributes.get("block_size"):
        return sweep.reshape(name, (first, second, 1, length), source=node.source)
    tall = sweep.constant(np.ascontiguousarray(array[:, :, None]), f"{made.inputs[0]}/tall")
    attributes = {**made.attributes, "axis": axis}
    return sweep.emit("DequantizeLinear", [tall, *made.inputs[1:]], source=made.source, **attributes)
