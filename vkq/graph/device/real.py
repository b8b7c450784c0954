"""Float32 operators on a device that are sums, products, quotients, roots, maxima and minima: the same steps
as in NumPy (`vkq.graph.operators.elementwise`), each rounded."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...kernels.repack import reshaped
from ...ops import take
from ...ops.real import RealOp, combined, converted, number, square_root, summed
from ...problem.window import Window
from ...runtime.builder import Builder, Value
from ..graph import Array, Graph, Node
from ..operators.elementwise import SIXTH, normalization
from ..operators.images import window
from ..operators.number import reduced
from .context import Context, DeviceOperator, Record, places_are_known

BINARY: dict[str, RealOp] = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min", "Sum": "add",
}  # fmt: skip
Steps = Callable[[Builder, Value, Mapping[str, Any]], Value]


def check(graph: Graph, node: Node) -> str | None:
    others = [str(graph.specs[name]) for name in node.inputs if name and graph.specs[name].dtype != "float32"]
    return f"takes {', '.join(others)}; it must be float32" if others else None


def _binary(context: Context, node: Node) -> Value:
    """Two operands, or several one after the other."""
    first, *others = (context.value(name) for name in node.inputs)
    for other in others:
        first = combined(context.builder, first, other, BINARY[node.op])
    return first


def _clip(context: Context, node: Node) -> Value:
    x = context.value(node.inputs[0])
    bounds: tuple[tuple[int, RealOp], ...] = ((1, "max"), (2, "min"))
    for index, op in bounds:
        if node.input(index):
            x = combined(context.builder, x, context.value(node.inputs[index]), op)
    return x


def _unary(steps: Steps) -> Record:
    def record(context: Context, node: Node) -> Value:
        return steps(context.builder, context.value(node.inputs[0]), node.attributes)

    return record


def _with(b: Builder, x: Value, *steps: tuple[RealOp, float]) -> Value:
    """x, changed by one number after the other."""
    for op, value in steps:
        x = combined(b, x, number(b, value), op)
    return x


def _hard_sigmoid(b: Builder, x: Value, a: Mapping[str, Any]) -> Value:
    line: tuple[tuple[RealOp, float], ...] = (("mul", a.get("alpha", 0.2)), ("add", a.get("beta", 0.5)))
    return _with(b, x, *line, ("max", 0.0), ("min", 1.0))


def _hard_swish(b: Builder, x: Value, a: Mapping[str, Any]) -> Value:
    gate = _with(b, x, ("mul", float(SIXTH)), ("add", 0.5), ("max", 0.0), ("min", 1.0))
    return combined(b, x, gate, "mul")


def _leaky(b: Builder, x: Value, a: Mapping[str, Any]) -> Value:
    """max(x, 0) + alpha min(x, 0): one of the two is 0."""
    less = _with(b, x, ("min", 0.0), ("mul", a.get("alpha", 0.01)))
    return combined(b, _with(b, x, ("max", 0.0)), less, "add")


def _square_check(graph: Graph, node: Node) -> str | None:
    exponent = graph.constants.get(node.inputs[1])
    if exponent is None or exponent.size != 1 or exponent.reshape(()) != 2:
        return "raises float32 numbers to other powers than 2"
    return check(graph, dataclasses.replace(node, inputs=node.inputs[:1]))


def _square(context: Context, node: Node) -> Value:
    x = context.value(node.inputs[0])
    return combined(context.builder, x, x, "mul")


def _reduced(context: Context, node: Node) -> Value:
    """A sum or mean along axes, which come last first."""
    b, x = context.builder, context.value(node.inputs[0])
    shape = x.spec.shape
    axes: tuple[int, ...] = tuple(range(2, len(shape)))
    if node.op == "ReduceSum":
        listed = context.graph.constants[node.inputs[1]].reshape(-1).tolist() if node.input(1) else None
        axes = reduced(node, len(shape), listed)
    kept = [i for i in range(len(shape)) if i not in axes]
    order = (*kept, *axes)
    if order != tuple(range(len(shape))):
        x = take.taken(b, x, np.arange(x.spec.size, dtype=np.int32).reshape(shape).transpose(order))
    y = summed(b, x, len(kept))
    if node.op == "GlobalAveragePool":
        y = _with(b, y, ("div", float(math.prod(shape[2:]))))
    return reshaped(b, y, context.graph.specs[node.outputs[0]].shape)


def _reduced_check(graph: Graph, node: Node) -> str | None:
    shape = graph.specs[node.inputs[0]].shape
    return check(graph, dataclasses.replace(node, inputs=node.inputs[:1])) or (
        f"takes {shape}; it must have numbers to add" if 0 in shape else places_are_known(graph, node)
    )


def _cast_check(graph: Graph, node: Node) -> str | None:
    pair = tuple(graph.specs[name].dtype for name in (node.inputs[0], node.outputs[0]))
    return (
        None if pair == ("int32", "float32") else f"makes {pair[1]} of {pair[0]}; it must be float32 of int32"
    )


def _seen(how: Window) -> list[Array]:
    """For each element of the kernel, row by row, the element of x that each result sees; -1 in the
    margins, -2 beyond them, where ceil_mode looks."""
    (n, c, h, w), (oh, ow), (top, left, bottom, right) = how.x_shape, how.y_shape[2:], how.padding
    inner = np.arange(n * c * h * w).reshape(how.x_shape)
    inner = np.pad(inner, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=-1)
    ends = [(o - 1) * s + r for o, s, r in zip((oh, ow), how.stride, how.reach, strict=True)]
    more = [(0, extra) for extra in np.maximum(np.subtract(ends, inner.shape[2:]), 0).tolist()]
    whole = np.pad(inner, ((0, 0), (0, 0), *more), constant_values=-2)
    return [
        whole[:, :, i : i + (oh - 1) * how.stride[0] + 1 : how.stride[0],
              j : j + (ow - 1) * how.stride[1] + 1 : how.stride[1]]
        for i in range(0, how.reach[0], how.dilation[0])
        for j in range(0, how.reach[1], how.dilation[1])
    ]  # fmt: skip


def _pooled(b: Builder, x: Value, seen: list[Array], op: RealOp, fill: float) -> Value:
    first, *others = (take.taken(b, x, np.maximum(places, -1), fill) for places in seen)
    for other in others:
        first = combined(b, first, other, op)
    return first


def max_pooled(b: Builder, x: Value, how: Window) -> Value:
    """The maximum of what each element of the kernel sees; margins are less than any number."""
    return _pooled(b, x, _seen(how), "max", -np.inf)


def _averaged(context: Context, node: Node) -> Value:
    b, x = context.builder, context.value(node.inputs[0])
    seen = _seen(window(node, x.spec.shape))
    least = -1 if node.attributes.get("count_include_pad", 0) else 0
    counts = np.sum([places[0, 0] >= least for places in seen], axis=0)
    return combined(b, _pooled(b, x, seen, "add", 0.0), number(b, counts), "div")


def _averaged_check(graph: Graph, node: Node) -> str | None:
    x = graph.specs[node.inputs[0]]
    return f"takes {x}; it must have numbers to add" if 0 in x.shape else check(graph, node)


def _normalized(context: Context, node: Node) -> Value:
    """One factor and one addend a channel, in ONNX Runtime's order."""
    b, x = context.builder, context.value(node.inputs[0])
    factor, addend = normalization(node, [context.graph.constants[name] for name in node.inputs[1:5]])
    shape = (-1, *(1,) * (len(x.spec.shape) - 2))
    y = combined(b, x, number(b, factor.reshape(shape)), "mul")
    return combined(b, y, number(b, addend.reshape(shape)), "add")


def _normalized_check(graph: Graph, node: Node) -> str | None:
    unknown = [name for name in node.inputs[1:5] if name not in graph.constants]
    return f"its parameter {unknown[0]!r} is computed at run time" if unknown else check(graph, node)


UNARY: dict[str, Steps] = {
    "Relu": lambda b, x, a: _with(b, x, ("max", 0.0)),
    "Neg": lambda b, x, a: _with(b, x, ("mul", -1.0)),
    "Abs": lambda b, x, a: combined(b, x, _with(b, x, ("mul", -1.0)), "max"),
    "Sqrt": lambda b, x, a: square_root(b, x),
    "Reciprocal": lambda b, x, a: combined(b, number(b, 1.0), x, "div"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky,
}
ROWS: dict[str, DeviceOperator] = {
    **{op: DeviceOperator(check, _binary) for op in BINARY},
    **{op: DeviceOperator(check, _unary(steps)) for op, steps in UNARY.items()},
    "AveragePool": DeviceOperator(_averaged_check, _averaged),
    "BatchNormalization": DeviceOperator(_normalized_check, _normalized),
    "Cast": DeviceOperator(_cast_check, _unary(lambda b, x, a: converted(b, x))),
    "Clip": DeviceOperator(check, _clip),
    "Pow": DeviceOperator(_square_check, _square),
    "ReduceSum": DeviceOperator(_reduced_check, _reduced),
    "GlobalAveragePool": DeviceOperator(_reduced_check, _reduced),
}
