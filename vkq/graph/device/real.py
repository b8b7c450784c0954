"""Float32 operators on a device that are sums, products, quotients, roots, maxima and minima: the same steps
as in NumPy (`vkq.graph.operators.elementwise`), each rounded."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ...kernels.repack import reshaped
from ...ops import take
from ...ops.real import RealOp, combined, number, summed
from ...problem.window import Window
from ...runtime.builder import Builder, Value
from ..graph import Array, Graph, Node
from ..operators.images import window
from ..operators.number import reduced
from .context import Context, DeviceOperator, places_are_known


def check(graph: Graph, node: Node) -> str | None:
    others = [str(graph.specs[name]) for name in node.inputs if name and graph.specs[name].dtype != "float32"]
    return f"takes {', '.join(others)}; it must be float32" if others else None


def _with(b: Builder, x: Value, *steps: tuple[RealOp, float]) -> Value:
    """x, changed by one number after the other."""
    for op, value in steps:
        x = combined(b, x, number(b, value), op)
    return x


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
        x = take.taken(b, x, take.numbers(b, shape, x.spec.size).transpose(order))
    y = summed(b, x, len(kept))
    if node.op == "GlobalAveragePool":
        y = _with(b, y, ("div", float(math.prod(shape[2:]))))
    return reshaped(b, y, context.graph.specs[node.outputs[0]].shape)


def _reduced_check(graph: Graph, node: Node) -> str | None:
    shape = graph.specs[node.inputs[0]].shape
    return check(graph, dataclasses.replace(node, inputs=node.inputs[:1])) or (
        f"takes {shape}; it must have numbers to add" if 0 in shape else places_are_known(graph, node)
    )


def _seen(b: Builder, how: Window) -> list[Array]:
    """For each element of the kernel, row by row, the element of x that each result sees; -1 in the
    margins, -2 beyond them, where ceil_mode looks."""
    (n, c, h, w), (oh, ow), (top, left, bottom, right) = how.x_shape, how.y_shape[2:], how.padding
    take.check_places(b, n * c * (h + top + bottom) * (w + left + right), n * c * oh * ow)
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
    return _pooled(b, x, _seen(b, how), "max", -np.inf)


def _averaged(context: Context, node: Node) -> Value:
    b, x = context.builder, context.value(node.inputs[0])
    seen = _seen(b, window(node, x.spec.shape))
    least = -1 if node.attributes.get("count_include_pad", 0) else 0
    counts = np.sum([places[0, 0] >= least for places in seen], axis=0)
    return combined(b, _pooled(b, x, seen, "add", 0.0), number(b, counts), "div")


def _averaged_check(graph: Graph, node: Node) -> str | None:
    x = graph.specs[node.inputs[0]]
    return f"takes {x}; it must have numbers to add" if 0 in x.shape else check(graph, node)


ROWS: dict[str, DeviceOperator] = {
    "AveragePool": DeviceOperator(_averaged_check, _averaged),
    "ReduceSum": DeviceOperator(_reduced_check, _reduced),
    "GlobalAveragePool": DeviceOperator(_reduced_check, _reduced),
}
