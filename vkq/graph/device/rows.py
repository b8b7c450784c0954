"""The table of device operators, which defines how each operator of a graph becomes steps of a plan.

An entry of the table has two functions: ``check`` returns the reason why a node cannot run on a device, and
``record`` adds the node's steps to the plan. A node cannot run if its operator has no entry or if ``check``
returns a reason."""

from __future__ import annotations

from typing import Any

from ...kernels.quantize import quantized
from ...kernels.repack import reshaped
from ...layout.extent import BLOCKED, Spec
from ...ops import elementwise, pool, quantize, softmax, table, tables
from ...ops.choose import argmax_of, chosen
from ...ops.matmul import multiplied
from ...ops.mean import averaged_by_table
from ...ops.real import pooled
from ...problem.heads import ONE_EACH
from ...runtime.builder import Value
from ..graph import Graph, Node
from ..operators.images import window
from ..operators.operator import axis_of
from . import (
    attention,
    chains,
    gates,
    groups,
    layers,
    linears,
    lines,
    movement,
    pairs,
    products,
    quantization,
    real,
    reductions,
)
from .context import (
    BYTES,
    OF_LAYERS,
    Context,
    DeviceOperator,
    anything,
    bytes_of_one_type,
    first_is_bytes,
    same_type,
    unnamed,
)
from .layouts import wanted, wanted_means

# `_why_float` states a type outside of this tuple as the reason. For int64 and bool, it states other reasons.
KNOWN = (*DeviceOperator.types, "int64", "bool")
WEIGHTED = "Conv", "ConvTranspose"


def refusal(graph: Graph, node: Node) -> str | None:
    """Return the reason why a node cannot run on a device; None if it can."""
    row = ROWS.get(node.op)
    if row is None or (node.op == "Cast" and "why" in node.attributes):
        return _why_float(graph, node)
    types = [graph.specs[name].dtype for name in (*node.inputs[:1], *node.outputs[:1]) if name]
    for dtype in types:
        if dtype not in row.types:
            return f"works on {dtype}; on a device it must be one of {', '.join(row.types)}"
    return row.check(graph, node)


def _why_float(graph: Graph, node: Node) -> str:
    if "why" in node.attributes:
        return str(node.attributes["why"])
    types = [graph.specs[name].dtype for name in (*node.inputs, *node.outputs) if name]
    if other := [dtype for dtype in types if dtype not in KNOWN]:
        return f"works on {other[0]}; on a device it must be one of {', '.join(KNOWN)}"
    if node.op in WEIGHTED and (weight := node.inputs[1]) not in graph.constants:
        return f"its weight {weight!r} is {graph.specs[weight]} and computed; it must be constant"
    dtypes = ", ".join(str(graph.specs[name]) for name in node.inputs if name and name not in graph.constants)
    return (
        f"works on {dtypes or 'constants'}: it is not between DequantizeLinear and"
        " QuantizeLinear in a form that vkq supports"
    )


# ----------------------------------------------------------------------------- products, element-wise


def _conv(context: Context, node: Node) -> Value:
    if node.outputs[0] in context.ahead:
        return context.ahead[node.outputs[0]]
    if (both := pairs.expanded(context, node)) is not None:
        return both
    return layers.convolved(context, node, wanted(context, node.outputs[0]))


def _matmul(context: Context, node: Node) -> Value:
    a, b = (context.value(name) for name in node.inputs)
    at = node.attributes
    heads = at.get("heads", ONE_EACH)
    layout = wanted(context, node.outputs[0]) if heads[2] > 1 else None
    form = at.get("rows", False), heads, layout
    return unnamed(context, multiplied(context.builder, a, b, at["y"], at["a"], at["b"], "wrap", *form))


def _binary(context: Context, node: Node) -> Value:
    if node.outputs[0] in context.ahead:
        return context.ahead[node.outputs[0]]
    a = node.attributes
    x, z = context.in_one_layout(node.inputs)
    op: Any = node.op
    y = elementwise.combined(context.builder, x, z, op, a["a"], a["b"], a["y"], a.get("activation"))
    return unnamed(context, y)


def _lookup(context: Context, node: Node) -> Value:
    a, x = node.attributes, context.value(node.inputs[0])
    if a["table"].ndim == 1 and a["table"].dtype.name in BYTES:
        return table.looked_up(context.builder, x, a["table"], None)
    return tables.looked_up_along(context.builder, x, a["table"], a.get("axis", 0))


def _lookup2(context: Context, node: Node) -> Value:
    a, b = (context.value(name) for name in node.inputs)
    return unnamed(context, elementwise.paired(context.builder, a, b, node.attributes["table"]))


def _where(context: Context, node: Node) -> Value:
    flags, x, z = (context.value(name) for name in node.inputs)
    return unnamed(context, chosen(context.builder, flags, x, z))


def _where_check(graph: Graph, node: Node) -> str | None:
    flags, x, z = (graph.specs[name].dtype for name in node.inputs)
    if flags != "uint8" or x != z or x not in (*BYTES, "float32", "int32"):
        return (
            f"selects from {x} and {z} by {flags}; flags must come from 8-bit values, and x and z must have"
            " one type"
        )
    return None


def _argmax(context: Context, node: Node) -> Value:
    a, x = node.attributes, context.value(node.inputs[0])
    axis = axis_of(node, len(x.spec.shape), 0)
    y = argmax_of(context.builder, x, axis, node.op == "argmin", bool(a.get("select_last_index", 0)))
    return reshaped(context.builder, y, context.graph.specs[node.outputs[0]].shape)


# ---------------------------------------------------------------------------- images, probabilities


def _reshape(context: Context, node: Node) -> Value:
    x, shape = context.value(node.inputs[0]), context.graph.specs[node.outputs[0]].shape
    if x.spec.layout == BLOCKED and x.spec.folded and len(shape) != 4 and shape[-1:] == x.spec.shape[-1:]:
        # All readers accept rows (..., C) in kPackedInt8_16C, so a view with the new shape is enough.
        return context.builder.view(x, Spec(shape, x.spec.dtype, BLOCKED, x.spec.qparams))
    return reshaped(context.builder, x, shape, wanted(context, node.outputs[0]))


def _avg_pool(context: Context, node: Node) -> Value:
    a = node.attributes
    y = pool.averaged(
        context.builder, context.value(node.inputs[0]), a["kernel"], a["stride"], a["padding"],
        a["ceil_mode"], a["count_include_pad"], a["y"], a["x"],
    )  # fmt: skip
    return unnamed(context, y)


def _global_avg_pool(context: Context, node: Node) -> Value:
    a = node.attributes
    x = context.value(node.inputs[0])
    layout, found = wanted_means(context, node.outputs[0]), gates.behind(context, node)
    excite = found.excite if found else None
    y = unnamed(
        context,
        pool.globally_averaged(context.builder, x, a["y"], a["x"], layout, excite, a.get("litert", "")),
    )
    if found:
        found.keep(context, y)
    return y


def _mean_lookup(context: Context, node: Node) -> Value:
    a, x = node.attributes, context.value(node.inputs[0])
    layout = wanted(context, node.outputs[0])
    return unnamed(context, averaged_by_table(context.builder, x, a["table"], a["y"], layout))


def _max_pool(context: Context, node: Node) -> Value:
    x = context.value(node.inputs[0])
    how = window(node, x.spec.shape)
    if x.spec.dtype == "float32":
        return pooled(context.builder, x, how, "max")
    y = pool.max_pooled(context.builder, x, how.kernel, how.stride, how.padding, how.dilation, how.ceil_mode)
    return unnamed(context, y)


def _max_pool_check(graph: Graph, node: Node) -> str | None:
    dtype = graph.specs[node.inputs[0]].dtype
    return None if dtype in (*BYTES, "float32") else f"takes {dtype}; it must be 8-bit or float32"


def _softmax(context: Context, node: Node) -> Value:
    a = node.attributes
    x = context.value(node.inputs[0])
    y = softmax.softmaxed(context.builder, x, a["axis"], a["y"], a["x"], a["onnxruntime"], "litert" in a)
    return unnamed(context, y)


def _quantize(context: Context, node: Node) -> Value:
    layout = wanted(context, node.outputs[0])
    y = quantized(context.builder, context.value(node.inputs[0]), node.attributes["y"], layout)
    return unnamed(context, y)


# ----------------------------------------------------------------------------------------------- the table


PLAIN: dict[str, DeviceOperator] = {
    "Identity": DeviceOperator(anything, lambda context, node: context.value(node.inputs[0])),
    "quantize": DeviceOperator(anything, _quantize),
    "dequantize": DeviceOperator(
        anything,
        lambda context, node: quantize.dequantized(
            context.builder, context.value(node.inputs[0]), node.attributes["x"]
        ),
    ),
    "conv2d": DeviceOperator(same_type, _conv, OF_LAYERS),
    **layers.ROWS,
    **linears.ROWS,
    "matmul": DeviceOperator(anything, _matmul),
    "add": DeviceOperator(bytes_of_one_type, _binary),
    "sub": DeviceOperator(bytes_of_one_type, _binary),
    "mul": DeviceOperator(bytes_of_one_type, _binary),
    "lookup": DeviceOperator(anything, _lookup),
    "lookup2": DeviceOperator(bytes_of_one_type, _lookup2),
    "where": DeviceOperator(_where_check, _where),
    "Where": DeviceOperator(_where_check, _where),
    "argmax": DeviceOperator(first_is_bytes, _argmax),
    "argmin": DeviceOperator(first_is_bytes, _argmax),
    "avg_pool2d": DeviceOperator(same_type, _avg_pool),
    "global_avg_pool2d": DeviceOperator(same_type, _global_avg_pool),
    "mean_lookup": DeviceOperator(first_is_bytes, _mean_lookup),
    "softmax": DeviceOperator(same_type, _softmax),
    "MaxPool": DeviceOperator(_max_pool_check, _max_pool),
    "Reshape": DeviceOperator(anything, _reshape),
    **movement.ROWS,
    **quantization.ROWS,
    **groups.ROWS,
    **products.ROWS,
    **real.ROWS,
    **chains.ROWS,
    **attention.ROWS,
    **reductions.ROWS,
    **lines.ROWS,
}
ROWS = PLAIN | {op: lines.reducing_int32(PLAIN.get(op), op) for op in lines.INT32}
