"""Fuses two nodes into one dispatch: a 1x1 convolution and the depthwise convolution that reads its result; a
depthwise convolution and the 1x1 convolution after it; a Gather of embedding rows and an addition or
product."""

from __future__ import annotations

from typing import cast

from ...layout.extent import Spec
from ...numerics.elementwise import BinaryOp
from ...ops.conv2d import Conv2d
from ...ops.expanded import Expansion
from ...ops.expanded import bytes_between as expanded_bytes
from ...ops.gathered import combined_rows
from ...ops.projected import Projection
from ...ops.projected import bytes_between as projected_bytes
from ...runtime.builder import Value
from ..graph import Node
from .context import BYTES, Context, unnamed
from .layers import conv_of, finished, only_reader


def expanded(context: Context, node: Node) -> Value | None:
    """Fuse a 1x1 convolution with a depthwise convolution into one dispatch, if that is possible and faster.
    The depthwise convolution must be the only reader of the 1x1 result. Return the depthwise result, and
    store it as the result of the depthwise node; return None if the two are not fused."""
    x = context.value(node.inputs[0])
    if x.spec.dtype not in BYTES or node.input(3) or node.attributes["y"] is None:
        return None
    reader = only_reader(context, node)
    if reader is None or context.graph.specs[node.outputs[0]].dtype not in BYTES:
        return None
    spec = Spec(x.spec.shape, x.spec.dtype, x.spec.layout)
    found = Expansion.of(conv_of(context, node), conv_of(context, reader), spec)
    if found is None or _rather_projected(context, reader, found):
        return None
    y = unnamed(context, found.build(context.builder, x))
    _together(context, node, reader, y, found.reason)
    return y


def _together(context: Context, node: Node, reader: Node, y: Value, why: str) -> None:
    """Store y as the result of *reader*, which one dispatch computes together with *node*; store the reason
    *why* for reports."""
    context.ahead[reader.outputs[0]] = y
    context.reasons[node.outputs[0]] = f"with {reader.source!r} in one dispatch: {why}"
    context.reasons[reader.outputs[0]] = f"in the dispatch of {node.source!r}"


def _rather_projected(context: Context, node: Node, found: Expansion) -> bool:
    """Return True if a depthwise node is better fused with the 1x1 convolution after it than with the one
    before it (*found*). This holds if the image that stays on chip is at least as large, because the fusion
    with the convolution after it computes no pixel twice."""
    p = found.problem
    x = Spec((p.n, p.ic, p.h, p.w), context.graph.specs[node.inputs[0]].dtype, found.layout)
    other = _projection(context, node, x)
    return other is not None and projected_bytes(other.problem) >= expanded_bytes(p)


def _projection(context: Context, node: Node, x: Spec) -> Projection | None:
    """Return the fusion of a depthwise node with the 1x1 convolution after it, or None. x: the spec of the
    depthwise node's image."""
    reader = only_reader(context, node, residual=True)
    if reader is None or node.input(3) or node.attributes["y"] is None:
        return None
    dtypes = {context.graph.specs[one.outputs[0]].dtype for one in (node, reader)} | {x.dtype}
    residual = reader.input(3)
    if not dtypes <= set(BYTES) or (residual and not _known(context, residual)):
        return None
    return Projection.of(conv_of(context, node), conv_of(context, reader), x)


def _known(context: Context, name: str) -> bool:
    """Return True if a value is a constant or was already planned."""
    return name in context.values or name in context.graph.constants


def projected(context: Context, node: Node) -> Value | None:
    """Fuse a depthwise convolution with a 1x1 convolution into one dispatch, if that is possible and faster.
    The 1x1 convolution must be the only reader of the depthwise result; it may have a residual. Return the
    1x1 result, and store it as the result of the 1x1 node; return None if the two are not fused."""
    x = context.value(node.inputs[0])
    spec = Spec(x.spec.shape, x.spec.dtype, x.spec.layout)
    found = _projection(context, node, spec)
    if found is None:
        return None
    (reader,) = context.readers(node.outputs[0])

    def build(layer: Conv2d, other: Value | None) -> Value:
        return found.ending(layer).build(context.builder, x, other)

    y = finished(context, reader, x, conv_of, build, node)
    _together(context, node, reader, y, found.reason)
    return y


def embedded(context: Context, node: Node) -> Value | None:
    """Fuse a Gather of rows of a table with the add, sub or mul that reads these rows, if no other node
    reads them and the other operand is a constant or an earlier value. Return the result, and store it as the
    result of that node; return None if the two are not fused."""
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
