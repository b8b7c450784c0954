"""The operator ``chain``: element-wise operators that a device computes in one dispatch
(`vkq.graph.passes.chains`). Attributes: ``chain``, the computation; ``gives``, the dtypes in which the
results are stored; ``shape``, the shape of every result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, there


def _infer(x: Inputs) -> list[Spec]:
    return [Spec(dtype, x.node.attributes["shape"]) for dtype in x.node.attributes["gives"]]


def _compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    chain, shape = node.attributes["chain"], node.attributes["shape"]
    arrays = [there(array).astype(dtype) for array, dtype in zip(x, chain.inputs, strict=True)]
    found = chain.computed(*(np.asarray(array) for array in arrays))
    return [
        np.broadcast_to(np.clip(value, *_limits(dtype)), shape).astype(dtype)
        for value, dtype in zip(found, node.attributes["gives"], strict=True)
    ]


def _limits(dtype: str) -> tuple[float, float]:
    return (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype in ("int8", "uint8") else (-np.inf, np.inf)


OPERATORS = {"chain": Operator("number", _infer, _compute)}
