"""Rewrites vkq's operators on 8-bit values as ONNX nodes: DequantizeLinear, a float operator and
QuantizeLinear. ONNX Runtime runs these nodes if a device refuses the operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.graph import Node
from ..numerics.qparams import QParams
from .protobuf import package

BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "where": "Where"}
OPERATORS = ("quantize", "dequantize", *BINARY)


def spelled(node: Node) -> list[Any]:
    """Return ONNX nodes that compute the results of *node*. The operator of *node* is in `OPERATORS`."""
    helper, a, y = package().helper, node.attributes, node.outputs[0]
    if node.op == "quantize":
        return _linear("QuantizeLinear", node.inputs[0], y, a["y"])
    if node.op == "dequantize":
        return _linear("DequantizeLinear", node.inputs[0], y, a["x"])
    first, sides = node.inputs[:-2], node.inputs[-2:]
    real = [f"{y}/{i}" for i in range(2)]
    pairs = zip(sides, real, (a["a"], a["b"]), strict=True)
    before = [one for x, name, q in pairs for one in _linear("DequantizeLinear", x, name, q)]
    result = f"{y}/real"
    made = [helper.make_node(BINARY[node.op], [*first, *real], [result], name=node.source)]
    if a.get("activation"):
        low, high = a["activation"]
        made += [_constant(f"{y}/low", np.float32(low)), _constant(f"{y}/high", np.float32(high))]
        bounded = f"{y}/bounded"
        made.append(helper.make_node("Clip", [result, f"{y}/low", f"{y}/high"], [bounded]))
        result = bounded
    return [*before, *made, *_linear("QuantizeLinear", result, y, a["y"])]


def _linear(op: str, x: str, y: str, q: QParams) -> list[Any]:
    scale, zero = f"{y}/scale", f"{y}/zero_point"
    constants = [_constant(scale, np.float32(q.scale)), _constant(zero, np.array(q.zero_point, q.dtype))]
    return [*constants, package().helper.make_node(op, [x, scale, zero], [y])]


def _constant(name: str, value: Any) -> Any:
    onnx = package()
    return onnx.helper.make_node(
        "Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(value))
    )
