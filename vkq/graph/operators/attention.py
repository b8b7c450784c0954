"""Attention as one operator (`vkq.numerics.attention`), and attention to an int8 cache.

attention: inputs q, k, v, an optional bias, which is added to scores, and optional int32 positions of the
queries (batch or 1, queries). The attributes ``scale``, ``seen`` and ``guarded`` are explained in
`vkq.numerics.attention.attention`. ``axes`` has four permutations, for q, k, v and the result. Each brings
the axes of its array into the order (batch, heads, tokens, features). ``dtype``: the type of the result,
float32 or float16; a float16 result is the float32 result, rounded. ``fused``: why this node was fused, as a
text for reports.

append_cache: inputs x (batch, tokens, heads, elements) in float32, an optional int32 start (batch,), and an
optional past cache (batch, heads, keys, words). The result is an int8 cache for ``total`` keys. From position
start (default 0) on, the result has the vectors of x. All other positions have the words of the past cache,
or 0 where the past cache has no words. The attribute ``range``, the range of the result, is that of int32,
because a word of the cache may have any value.

unpack_cache: input an int8 cache (batch, heads, keys, words) of vectors of ``width`` numbers; the result is
the vectors in float32. The operator has no kernel: `vkq.graph.passes.attention` replaces the attention that
reads the result by an `attention_int8` node, which reads the cache. Any other reader is an error.

rotate: inputs x (batch, tokens, heads, elements), cosines and sines (batch or 1, tokens, 1, width), in
float32. The first 2 * width elements of each head are rotated in pairs. ``interleaved``: which elements form
a pair (`vkq.numerics.rotary.rotated`).

attention_int8: inputs q (batch, queries, heads, elements) in float32, two int8 caches (keys, values), int32
lengths (batch,), an optional bias and an optional sink (heads,). ``rules``: see
`vkq.numerics.attention_int8`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...numerics.attention import attention
from ...numerics.attention_cache import packed, unpacked, words_of
from ...numerics.attention_int8 import attention_int8
from ...numerics.described import array_of, number_of
from ...numerics.rotary import rotated
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, one, same, there

Axes = tuple[int, ...]


def moved(shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """Return a shape with its axes permuted."""
    return tuple(shape[a] for a in axes)


def result_shape(node: Node, q: Sequence[int], v: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of an attention's result. *q* and *v*: the shapes of these inputs."""
    axes = node.attributes["axes"]
    first = (*moved(q, axes[0])[:3], moved(v, axes[2])[3])
    return tuple(first[axes[3].index(a)] for a in range(4))


def _infer(x: Inputs) -> list[Spec]:
    shape = result_shape(x.node, x.spec(0).shape, x.spec(2).shape)
    return [Spec(x.node.attributes["dtype"], shape)]


def _compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    q, k, v = (there(x[i]).astype(np.float32).transpose(a["axes"][i]) for i in range(3))
    bias, places = (x[i] if i < len(x) else None for i in (3, 4))
    y = attention(q, k, v, a["scale"], a["seen"], bias, a["guarded"], places)
    y = y.transpose([a["axes"][3].index(i) for i in range(4)])
    return one(y if a["dtype"] == "float32" else array_of(number_of(y), a["dtype"]))


def _infer_append(x: Inputs) -> list[Spec]:
    batch, _, heads, width = x.spec(0).shape
    return [Spec("int32", (batch, heads, x.node.attributes["total"], words_of(width)))]


def _append(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, total = there(x[0]), node.attributes["total"]
    start, past = (x[i] if i < len(x) else None for i in (1, 2))
    batch, tokens, heads, width = given.shape
    y = np.zeros((batch, heads, total, words_of(width)), np.int32)
    if past is not None:
        y[:, :, : past.shape[2]] = past
    words = packed(given).swapaxes(1, 2)
    for i, first in enumerate([0] * batch if start is None else start):
        count = max(0, min(tokens, total - first))
        y[i, :, first : first + count] = words[i, :, :count]
    return one(y)


def _infer_unpack(x: Inputs) -> list[Spec]:
    return [Spec("float32", (*x.spec(0).shape[:-1], x.node.attributes["width"]))]


def _unpack(node: Node, x: Sequence[Array | None]) -> list[Array]:
    codes, scales = unpacked(there(x[0]), node.attributes["width"])
    return one(codes * scales[..., None])


def _rotate(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, cos, sin = map(there, x[:3])
    return one(rotated(given, cos, sin, node.attributes["interleaved"]))


def _int8(node: Node, x: Sequence[Array | None]) -> list[Array]:
    q, k, v, lengths = map(there, x[:4])
    bias, sink = (x[i] if i < len(x) else None for i in (4, 5))
    return one(attention_int8(q, k, v, lengths, node.attributes["rules"], bias, sink))


OPERATORS: dict[str, Operator] = {
    "attention": Operator("number", _infer, _compute),
    "append_cache": Operator("number", _infer_append, _append),
    "unpack_cache": Operator("number", _infer_unpack, _unpack),
    "rotate": Operator("number", same, _rotate),
    "attention_int8": Operator("number", same, _int8),
}
