"""The operator ``heads``, which splits the columns of one product into heads of queries, keys and values
(`vkq.numerics.heads`).

Inputs; an input that no part needs has the name "":

- x (batch, tokens, columns) in float32 or float16
- cosines and sines (batch or 1, tokens, 1, pairs) in float32
- start (batch,) in int32
- the cache (batch, heads, rows, width) of each part with the order "cache"

Attributes: ``parts`` has a `Part` for each result of the node; ``interleaved``: see
`vkq.numerics.rotary.rotated`. In a cache, the tokens replace the rows from start[batch] on; after the last
row, they continue at row 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, there
from .scatter import placed

X, COS, SIN, START, PASTS = range(5)  # the indices of the inputs


def _infer(x: Inputs) -> list[Spec]:
    batch, tokens, _ = x.spec(X).shape
    rows = x.spec(PASTS).shape[2] if len(x.specs) > PASTS else 0
    return [Spec(part.dtype, part.shape(batch, tokens, rows)) for part in x.node.attributes["parts"]]


def _compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a, given, pasts = node.attributes, there(x[X]), iter(x[PASTS:])
    angles = [there(x[i]) for i in (COS, SIN)] if node.inputs[COS] else []
    found = []
    with np.errstate(all="ignore"):
        for part in a["parts"]:
            y = part.computed(given, angles, a["interleaved"])
            found.append(placed(there(next(pasts)), there(x[START]), y) if part.order == "cache" else y)
    return found


OPERATORS = {"heads": Operator("number", _infer, _compute)}
