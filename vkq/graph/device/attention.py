"""The device functions for attention (also over an int8 key-value cache), for the append to this cache, for
rotary embeddings, and for the operator ``heads``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...kernels.attention import AttentionSizes, Strides, attended
from ...kernels.attention_cache import appended
from ...kernels.attention_half import HalfAttention
from ...kernels.attention_int8 import Int8Operands, attended_int8
from ...kernels.chain import Chain, Link, chained
from ...kernels.heads import buffers, headed
from ...kernels.lines import placed_rows
from ...kernels.rotary import rotated
from ...kernels.strided import contiguous
from ...layout.extent import Spec
from ...ops.attention_q8 import attended as attended_q8
from ...runtime.builder import Value
from ..graph import Node
from ..operators.attention import Axes, moved
from .context import BUFFERS, BYTES, Context, DeviceOperator, anything, unnamed
from .layouts import wanted

ROUND = Chain(("float32",), (), (Link("Cast", (0,), "float32", "float16", (("to", "float16"),)),), (1,))


def _strides(shape: Sequence[int], axes: Axes) -> Strides:
    """Return an array's strides in the order (batch, heads, tokens, features). *axes* has the index of each
    of these axes in *shape*."""
    return Strides(*moved(contiguous(tuple(shape)), axes))


def _broadcast(shape: Sequence[int]) -> Strides:
    """Return the strides with which a bias is broadcast: 0 for missing axes and for axes of length 1."""
    own = [step if size > 1 else 0 for step, size in zip(contiguous(tuple(shape)), shape, strict=True)]
    return Strides(*[0] * (4 - len(own)), *own)


def _attention(context: Context, node: Node) -> Value:
    a, b = node.attributes, context.builder
    operands = [context.value(name) for name in node.inputs[:3]]
    (batch, heads, queries, depth), (_, groups, keys, _), (*_, width) = (
        moved(x.spec.shape, axes) for x, axes in zip(operands, a["axes"], strict=False)
    )
    shapes = [*(x.spec.shape for x in operands), context.graph.specs[node.outputs[0]].shape]
    strides = [_strides(shape, axes) for shape, axes in zip(shapes, a["axes"], strict=True)]
    sizes = AttentionSizes(batch, heads, groups, queries, keys, depth, width)
    bias, places = (context.value(node.input(i)) if node.input(i) else None for i in (3, 4))
    added = None if bias is None else (bias, _broadcast(bias.spec.shape))
    q, k, v = operands
    rest = sizes, Spec(shapes[3], a["dtype"]), a["scale"], a["seen"], added, a["guarded"], places
    units = HalfAttention.of(
        b.device, (q.spec.dtype, k.spec.dtype, v.spec.dtype), strides, sizes, context.compute == "float16"
    )
    if isinstance(units, HalfAttention):
        y = units.build(b, (q, k, v), strides, *rest)
    else:
        y = attended(b, (q, k, v), (strides[0], strides[1], strides[2], strides[3]), *rest)
    return y if y.spec.dtype == a["dtype"] else chained(b, ROUND, [y], y.spec.shape)[0]


def _append_cache(context: Context, node: Node) -> Value:
    x, start, past = (context.value(node.input(i)) if node.input(i) else None for i in range(3))
    assert x is not None
    return appended(context.builder, x, start, past, node.attributes["total"])


def _rotate(context: Context, node: Node) -> Value:
    x, cos, sin = map(context.value, node.inputs)
    return rotated(context.builder, x, cos, sin, node.attributes["interleaved"])


def _heads(context: Context, node: Node) -> tuple[Value, ...]:
    """Add the operator ``heads`` to the plan: it splits a product into parts (queries, keys, values).

    One dispatch computes all parts if the device allows a shader enough buffers. Otherwise each part has its
    own dispatch. If even the dispatch of a cached part needs too many buffers, it writes the part to new
    memory, and a second dispatch copies the part into its cache."""
    a, b = node.attributes, context.builder
    x, cos, sin, start, *pasts = (context.value(name) if name else None for name in node.inputs)
    angles, most = [one for one in (cos, sin) if one], int(b.device.capabilities.properties[BUFFERS])
    caches = [one for one in pasts if one]
    assert x is not None
    if buffers(a["parts"]) <= most:
        return tuple(headed(b, x, angles, start, caches, a["parts"], a["interleaved"]))
    results = []
    for part in a["parts"]:
        own, turns = [caches.pop(0)] if part.order == "cache" else [], angles if part.rotated else []
        if own and start and buffers([part]) > most:
            moved = dataclasses.replace(part, order="heads")
            (y,) = headed(b, x, turns, None, [], [moved], a["interleaved"])
            results.append(placed_rows(b, own[0], start, y))
        else:
            results += headed(b, x, turns, start if own else None, own, [part], a["interleaved"])
    return tuple(results)


def _attention_int8(context: Context, node: Node) -> Value:
    q, k, v, lengths = (context.value(name) for name in node.inputs[:4])
    bias, sink = (context.value(node.input(i)) if node.input(i) else None for i in (4, 5))
    added = None if bias is None else (bias, _broadcast(bias.spec.shape))
    operands = Int8Operands(q, k, v, lengths, added, sink)
    return attended_int8(context.builder, operands, node.attributes["rules"])


def _attention_q8(context: Context, node: Node) -> Value:
    a, heads = node.attributes, node.attributes["heads"]
    q, k, v, *mask = (context.value(name) for name in node.inputs)
    layout = wanted(context, node.outputs[0]) if heads[3] > 1 else None
    y, why = attended_q8(
        context.builder, q, k, v, mask[0] if mask else None, a["steps"], heads, layout, a["columns"]
    )
    context.reasons[node.outputs[0]] = why
    return unnamed(context, y)


ROWS = {
    "attention": DeviceOperator(anything, _attention, ("float32", "float16")),
    "append_cache": DeviceOperator(anything, _append_cache, ("float32", "int32")),
    "heads": DeviceOperator(anything, _heads, ("float32", "float16")),
    "rotate": DeviceOperator(anything, _rotate, ("float32",)),
    "attention_int8": DeviceOperator(anything, _attention_int8, ("float32",)),
    "attention_q8": DeviceOperator(anything, _attention_q8, BYTES),
}
