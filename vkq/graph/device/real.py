"""Float32 sums and means on a device: ReduceSum, GlobalAveragePool and AveragePool. `vkq.ops.real` states the
rounding and the error bounds."""

from __future__ import annotations

import dataclasses
import math

from ...kernels.repack import reshaped
from ...ops import take
from ...ops.real import RealOp, combined, number, pooled, summed
from ...runtime.builder import Builder, Value
from ..graph import Graph, Node
from ..operators.images import window
from ..operators.number import reduced
from .context import Context, DeviceOperator, parameters_are_constant


def check(graph: Graph, node: Node) -> str | None:
    others = [str(graph.specs[name]) for name in node.inputs if name and graph.specs[name].dtype != "float32"]
    return f"takes {', '.join(others)}; it must be float32" if others else None


def _applied(b: Builder, x: Value, *steps: tuple[RealOp, float]) -> Value:
    """Apply the operators in *steps* to x, one after the other. A step is a pair (operator, second
    operand); the second operand is a number."""
    for op, value in steps:
        x = combined(b, x, number(b, value), op)
    return x


def _reduced(context: Context, node: Node) -> Value:
    """Add a sum or mean to the plan. A transpose first moves the reduced axes to the end."""
    b, x = context.builder, context.value(node.inputs[0])
    shape = x.spec.shape
    axes: tuple[int, ...] = tuple(range(2, len(shape)))
    if node.op == "ReduceSum":
        listed = context.graph.constants[node.inputs[1]].reshape(-1).tolist() if node.input(1) else None
        axes = reduced(node, len(shape), listed)
    kept = [i for i in range(len(shape)) if i not in axes]
    order = (*kept, *axes)
    if order != tuple(range(len(shape))):
        x = take.gather(b, x, take.numbers(b, shape, x.spec.size).transpose(order))
    y = summed(b, x, len(kept))
    if node.op == "GlobalAveragePool":
        y = _applied(b, y, ("div", float(math.prod(shape[2:]))))
    return reshaped(b, y, context.graph.specs[node.outputs[0]].shape)


def _reduced_check(graph: Graph, node: Node) -> str | None:
    shape = graph.specs[node.inputs[0]].shape
    return check(graph, dataclasses.replace(node, inputs=node.inputs[:1])) or (
        f"takes {shape}; it must have numbers to add" if 0 in shape else parameters_are_constant(graph, node)
    )


def _averaged(context: Context, node: Node) -> Value:
    x = context.value(node.inputs[0])
    counted = bool(node.attributes.get("count_include_pad", 0))
    return pooled(context.builder, x, window(node, x.spec.shape), "mean", counted)


def _averaged_check(graph: Graph, node: Node) -> str | None:
    x = graph.specs[node.inputs[0]]
    return f"takes {x}; it must have numbers to add" if 0 in x.shape else check(graph, node)


ROWS: dict[str, DeviceOperator] = {
    "AveragePool": DeviceOperator(_averaged_check, _averaged),
    "ReduceSum": DeviceOperator(_reduced_check, _reduced),
    "GlobalAveragePool": DeviceOperator(_reduced_check, _reduced),
}
