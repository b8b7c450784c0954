"""Linear layers on a device. If the layers that compute an attention's queries, keys and values read the same
value, one matrix product computes all these layers where that is possible and faster."""

from __future__ import annotations

from ...numerics.qparams import QParams
from ...ops.linears import JoinedLinears
from ...runtime.builder import Value
from ..graph import Node
from .context import OF_LAYERS, Context, DeviceOperator, same_type, unnamed
from .layers import linear_of, multiplied


def _record(context: Context, node: Node) -> Value:
    name = node.outputs[0]
    if name not in context.ahead:
        _join(context, node)
    return context.ahead[name] if name in context.ahead else multiplied(context, node)


def _join(context: Context, node: Node) -> None:
    """Compute a linear node, and the nodes that `_joinable` finds for it, in one matrix product. Store all
    results in ``context.ahead``. If one product cannot compute the nodes, only store the reason in
    ``context.reasons``."""
    nodes = _joinable(context, node)
    if len(nodes) < 2:
        return
    layers, x = [linear_of(context, one) for one in nodes], context.value(node.inputs[0])
    why, results = JoinedLinears.refusal(layers, x.spec), None
    if not why:
        joined = context.keep(("linears", node.outputs[0]), lambda: JoinedLinears(layers), *layers)
        results = joined.build(context.builder, x)
        why = "the offsets of the results are not aligned for the device"
    others = ", ".join(repr(one.source) for one in nodes[1:])
    if results is None:
        context.reasons[node.outputs[0]] = f"not in one product with {others}: {why}"
        return
    context.reasons[node.outputs[0]] = f"in one product with {others}"
    for one, result in zip(nodes, results, strict=True):
        context.ahead[one.outputs[0]] = unnamed(context, result)
        context.reasons.setdefault(one.outputs[0], f"in the product of {node.source!r}")


def _joinable(context: Context, node: Node) -> list[Node]:
    """Return *node* and the linear nodes that one matrix product can compute together with *node*.

    These nodes have the same input, and the same parameters of the input, as *node*. They are not computed
    yet, and have 8-bit results of one type. One attention node is the only reader of all these results."""
    reader, a = _attention(context, node), node.attributes
    if reader is None or not isinstance(a["x"], QParams):
        return []
    dtype, x = context.graph.specs[node.outputs[0]].dtype, node.inputs[0]
    return [
        one
        for one in context.readers(x)
        if one.op == "linear" and one.inputs[0] == x and one.attributes["x"] == a["x"]
        and one.outputs[0] not in context.values and context.graph.specs[one.outputs[0]].dtype == dtype
        and _attention(context, one) is reader
    ]  # fmt: skip


def _attention(context: Context, node: Node) -> Node | None:
    """Return the attention node that is the only reader of a linear node's 8-bit result. Return None if there
    is no such node. Also return None if the linear node has an activation, or an epilogue other than a
    lookup."""
    name, a = node.outputs[0], node.attributes
    steps = {step.op for step in a.get("after", ())}
    plain = a["y"] is not None and a["activation"] is None and steps <= {"lookup"}
    if not plain or context.uses[name] != 1 or name in context.results:
        return None
    (reader,) = context.readers(name)
    return reader if reader.op == "attention_q8" and name in reader.inputs[:3] else None


ROWS = {"linear": DeviceOperator(same_type, _record, OF_LAYERS)}
