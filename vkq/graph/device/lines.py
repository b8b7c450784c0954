"""Running sums and products, int32 reductions, top-k, weighted sums, and scattered rows on a device."""

from __future__ import annotations

import math

from ...kernels.cast import converted
from ...kernels.lines import beyond, largest, placed_rows, reduced_along, running_along, scattered_rows
from ...kernels.repack import reshaped
from ...kernels.strided import contiguous, strided
from ...kernels.taps import summed_taps
from ...runtime.builder import Value
from ..graph import Graph, Node
from ..operators.number import reduced
from ..operators.scatter import running_axis
from .context import Context, DeviceOperator, anything, parameters_are_constant

TYPES = ("float32", "float16", "int32")
INT32 = {"ReduceSum": "add", "ReduceProd": "mul", "ReduceMax": "max", "ReduceMin": "min"}


def _running_check(graph: Graph, node: Node) -> str | None:
    if (unknown := parameters_are_constant(graph, node)) is not None:
        return unknown
    shape = graph.specs[node.inputs[0]].shape
    length = shape[running_axis(node, len(shape), graph.constants[node.inputs[1]])]
    return beyond(math.prod(shape) // max(length, 1), length)


def _running(context: Context, node: Node) -> Value:
    b, x = context.builder, context.value(node.inputs[0])
    axis = running_axis(node, len(x.spec.shape), context.graph.constants[node.inputs[1]])
    backwards, exclusive = (bool(node.attributes.get(key, 0)) for key in ("reverse", "exclusive"))
    wide = converted(b, x, "float32") if x.spec.dtype == "float16" else x
    how = "add" if node.op == "CumSum" else "mul"
    y = running_along(b, wide, axis, how, exclusive, backwards)
    return converted(b, y, "float16") if x.spec.dtype == "float16" else y


def _reduced_check(graph: Graph, node: Node) -> str | None:
    if (unknown := parameters_are_constant(graph, node)) is not None:
        return unknown
    shape = graph.specs[node.inputs[0]].shape
    if 0 in shape:
        return f"takes {shape}, which is empty; it must have elements"
    length = math.prod(shape[i] for i in _axes(graph, node))
    return beyond(math.prod(shape) // length, length)


def _axes(graph: Graph, node: Node) -> tuple[int, ...]:
    listed = graph.constants[node.inputs[1]].reshape(-1).tolist() if node.input(1) else None
    return reduced(node, len(graph.specs[node.inputs[0]].shape), listed)


def _reduced(context: Context, node: Node) -> Value:
    """Add a reduction to the plan. A transpose first moves the reduced axes to the end."""
    b, x, axes = context.builder, context.value(node.inputs[0]), _axes(context.graph, node)
    shape, own = x.spec.shape, contiguous(x.spec.shape)
    kept = [i for i in range(len(shape)) if i not in axes]
    order = [*kept, *axes]
    if order != sorted(order):
        x = strided(b, x, [shape[i] for i in order], [own[i] for i in order])
    y = reduced_along(b, x, len(kept), INT32[node.op]) if axes else x
    return reshaped(b, y, context.graph.specs[node.outputs[0]].shape)


def reducing_int32(row: DeviceOperator | None, op: str) -> DeviceOperator:
    """Return an entry of the operator table that reduces int32 values by `reduced_along`. For all other
    types, the entry does what the entry *row* does; if *row* is None, the entry refuses these types."""

    def check(graph: Graph, node: Node) -> str | None:
        dtype = graph.specs[node.inputs[0]].dtype
        if dtype == "int32":
            return _reduced_check(graph, node)
        return row.check(graph, node) if row is not None else f"takes {dtype}; it must be int32"

    def record(context: Context, node: Node) -> Value | tuple[Value, ...]:
        whole = context.graph.specs[node.inputs[0]].dtype == "int32"
        return _reduced(context, node) if whole or row is None else row.record(context, node)

    return DeviceOperator(check, record, row.types if row is not None else ("int32",))


def _topk_check(graph: Graph, node: Node) -> str | None:
    lines, length = graph.specs[node.inputs[0]].shape
    return beyond(lines * length, length)


def _topk(context: Context, node: Node) -> tuple[Value, ...]:
    a = node.attributes
    return largest(context.builder, context.value(node.inputs[0]), a["k"], bool(a["largest"]))


def _scatter_check(graph: Graph, node: Node) -> str | None:
    x, ids, updates = (graph.specs[name] for name in node.inputs)
    if ids.dtype != "int32" or updates.dtype != x.dtype:
        return f"writes {updates.dtype} to {x.dtype} at {ids.dtype} indices; run-time indices must be int32"
    return beyond(math.prod(x.shape), math.prod(ids.shape))


def _scatter(context: Context, node: Node) -> Value:
    x, ids, updates = (context.value(name) for name in node.inputs)
    return scattered_rows(context.builder, x, ids, updates, node.attributes["reduction"])


def _place_check(graph: Graph, node: Node) -> str | None:
    x, start, updates = (graph.specs[name] for name in node.inputs)
    if start.dtype != "int32" or updates.dtype != x.dtype:
        return f"writes {updates.dtype} to {x.dtype} from {start.dtype} positions on; they must be int32"
    if x.dtype == "float16" and x.shape[3] % 2:
        return f"writes rows of {x.shape[3]} float16 values, which are not whole words"
    return None


def _place(context: Context, node: Node) -> Value:
    x, start, updates = (context.value(name) for name in node.inputs)
    return placed_rows(context.builder, x, start, updates)


def _taps(context: Context, node: Node) -> Value:
    a = node.attributes
    return summed_taps(context.builder, context.value(node.inputs[0]), a["axis"], a["index"], a["weight"])


ROWS: dict[str, DeviceOperator] = {
    "CumSum": DeviceOperator(_running_check, _running, TYPES),
    "CumProd": DeviceOperator(_running_check, _running, TYPES),
    "topk": DeviceOperator(_topk_check, _topk, ("float32", "int32")),
    "taps": DeviceOperator(anything, _taps, ("float32",)),
    "scatter": DeviceOperator(_scatter_check, _scatter, ("float32", "int32")),
    "place": DeviceOperator(_place_check, _place, TYPES),
}
