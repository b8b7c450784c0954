"""A 1x1 convolution and the depthwise convolution that reads its result, in one dispatch."""

from __future__ import annotations

from ...layout.extent import Spec
from ...ops.expanded import Expansion
from ...runtime.builder import Value
from ..graph import Node
from .context import BYTES, Context, unnamed
from .layers import conv_of, only_reader


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
    if found is None:
        return None
    y = unnamed(context, found.build(context.builder, x))
    context.ahead[reader.outputs[0]] = y
    context.reasons[node.outputs[0]] = f"with {reader.source!r} in one dispatch: {found.reason}"
    context.reasons[reader.outputs[0]] = f"in the dispatch of {node.source!r}"
    return y
