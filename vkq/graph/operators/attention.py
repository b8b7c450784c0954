"""Attention as one operator (`vkq.numerics.attention`).

attention: inputs q, k, v and an optional bias, which is added to scores; attributes ``scale``, ``seen``,
``guarded`` (`vkq.numerics.attention.attention`). ``axes`` has four permutations. ``axes[0]`` to ``axes[2]``
bring the axes of q, k and v into the order (batch, heads, tokens, features). ``axes[3]`` is the order of the
result's axes; the result is float32. ``fused``: why this node was fused, as a text for reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...numerics.attention import attention
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, one, there

Axes = tuple[int, ...]


def moved(shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """Return a shape with its axes permuted."""
    return tuple(shape[a] for a in axes)


def result_shape(node: Node, q: Sequence[int], v: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the result for these shapes of q and v."""
    axes = node.attributes["axes"]
    first = (*moved(q, axes[0])[:3], moved(v, axes[2])[3])
    return tuple(first[axes[3].index(a)] for a in range(4))


def _infer(x: Inputs) -> list[Spec]:
    return [Spec("float32", result_shape(x.node, x.spec(0).shape, x.spec(2).shape))]


def _compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    q, k, v = (there(x[i]).astype(np.float32).transpose(a["axes"][i]) for i in range(3))
    y = attention(q, k, v, a["scale"], a["seen"], x[3] if len(x) > 3 else None, a["guarded"])
    return one(y.transpose([a["axes"][3].index(i) for i in range(4)]))


OPERATORS: dict[str, Operator] = {"attention": Operator("number", _infer, _compute)}
