"""MatMulNBits on a device: products whose weights have a scale for each group along K."""

from __future__ import annotations

import numpy as np

from ...errors import VkqError
from ...ops.linear import Linear
from ...runtime.builder import Value
from ..graph import Graph, Node
from ..operators.groups import BIAS, A, weight_of
from .context import Context, DeviceOperator


def _check(graph: Graph, node: Node) -> str | None:
    bias = graph.constants.get(node.input(BIAS))
    if node.input(BIAS) and bias is None:
        return "its bias must be a constant"
    try:
        n = weight_of(node, graph.constants).shape[0]
    except VkqError as error:
        return str(error).removeprefix(f"{node}: ")
    if bias is not None and bias.size != n:
        return f"its bias has shape {bias.shape} and N is {n}; it must have one number for each column"
    return None


def _record(context: Context, node: Node) -> Value:
    constants, device = context.graph.constants, context.builder.device

    def make() -> Linear:
        # The bias of a Gemm may also be a matrix of one row.
        bias = constants[node.inputs[BIAS]].astype(np.float32).reshape(-1) if node.input(BIAS) else None
        return Linear(weight_of(node, constants), bias=bias, device=device, compute=context.compute)

    of = [constants.get(name) for name in node.inputs[1:]]
    layer = context.keep((node.op, node.outputs[0]), make, node.attributes, *of)
    y: Value = layer.build(context.builder, context.value(node.inputs[A]))
    return y


ROWS: dict[str, DeviceOperator] = {"MatMulNBits": DeviceOperator(_check, _record, ("float32", "float16"))}
