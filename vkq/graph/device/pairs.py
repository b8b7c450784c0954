"""Fuses two nodes into one dispatch: a 1x1 convolution and the depthwise convolution that reads its result; a
Gather of embedding rows and the addition, subtraction or product that reads these rows."""

from __future__ import annotations

from typing import cast

from ...layout.extent import Spec
from ...numerics.elementwise import BinaryOp
from ...ops.expanded import Expansion
from ...ops.gathered import combined_rows
from ...runtime.builder import Value
from ..graph import Node
from .context import BYTES, Context, unnamed
from .layers import conv_of, only_reader


def expanded(context: Context, node: Node) -> Value | None:
    """Fuse a 1x1 convolution with a depthwise convolution into one dispatch, if that is possible and faster.
    The depthwise convolution must be the only reader of the 1x1 convolution's result. Return the result of
    the depthwise convolution, and store this result in ``context.ahead`` for the depthwise node. Return None
    if the two convolutions are not fused."""
    x = context.value(node.inputs[0])
    if x.spec.dtype not in BYTES or node.input(3) or node.attributes["y"] is None:
        return None
    reader = only_reader(context, node)
    if reader is None or context.graph.specs[node.outputs[0]].dtype not in BYTES:
        return None
    spec = Spec(x.spec.shape, x.spec.dtype, x.spec.layout)
    found = Expansion.of(conv_of(context, node), conv_of(context, reader), spec)
    if found is None:
        return None
    y = unnamed(context, found.build(context.builder, x))
    context.ahead[reader.outputs[0]] = y
    context.reasons[node.outputs[0]] = f"with {reader.source!r} in one dispatch: {found.reason}"
    context.reasons[reader.outputs[0]] = f"in the dispatch of {node.source!r}"
    return y


def embedded(context: Context, node: Node) -> Value | None:
    """Fuse a Gather of rows of a table with the add, sub or mul that reads these rows. No other node may read
    the rows, and the other operand must be a constant or an earlier value. Return the result of the add, sub
    or mul, and store this result in ``context.ahead`` for that node. Return None if the two nodes are not
    fused."""
    name, graph = node.outputs[0], context.graph
    readers = context.readers(name)
    if len(readers) != 1 or context.uses[name] != 1 or readers[0].op not in ("add", "sub", "mul"):
        return None
    (reader,) = readers
    a, op, second = reader.attributes, cast(BinaryOp, reader.op), reader.inputs[1] == name
    other = reader.inputs[0 if second else 1]
    if node.attributes.get("axis", 0) or not (other in graph.constants or other in context.values):
        return None
    x, ids, z = (context.value(one) for one in (*node.inputs, other))
    xq, zq = (a["b"], a["a"]) if second else (a["a"], a["b"])
    made = combined_rows(context.builder, x, ids, z, op, xq, zq, a["y"], a.get("activation"), second)
    if made is None:
        return None
    y = unnamed(context, made)
    context.ahead[reader.outputs[0]] = y
    context.reasons[name] = f"with {reader.source!r} in one dispatch"
    context.reasons[reader.outputs[0]] = f"in the dispatch of {node.source!r}"
    return y
