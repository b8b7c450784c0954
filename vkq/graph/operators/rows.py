"""Functions of rows (`vkq.numerics.rows`) in a graph.

rows: ``function`` of ``count`` axes from ``axis`` on, as one; a reduction leaves them out.
Normalization: ``function`` (normalize, normalize_root) of all axes from ``axis`` on; LayerNormalization and
its like without scale and bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...numerics.rows import FUNCTIONS, computed_rows
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, axis_of, one, same, there


def along(x: Array, function: str, axes: Sequence[int], epsilon: float = 0.0) -> Array:
    """A function of these axes of an array, taken as one; float16 numbers are computed with as float32."""
    kept = [i for i in range(x.ndim) if i not in axes]
    moved = x.astype(np.float32).transpose(*kept, *axes)
    length = math.prod(x.shape[i] for i in axes)
    found = computed_rows(function, moved.reshape(-1, length), {"epsilon": float(np.float32(epsilon))})
    if FUNCTIONS[function].each is None:
        shaped = found.reshape([x.shape[i] for i in kept])
    else:
        shaped = found.reshape(moved.shape).transpose(np.argsort([*kept, *axes]))
    return np.asarray(shaped, x.dtype)


def _rows(x: Inputs) -> list[Spec]:
    a, spec = x.node.attributes, x.spec(0)
    kept = (*spec.shape[: a["axis"]], *spec.shape[a["axis"] + a["count"] :])
    return [spec if FUNCTIONS[a["function"]].each else Spec(spec.dtype, kept)]


def _rows_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    axes = range(a["axis"], a["axis"] + a["count"])
    return one(along(there(x[0]), a["function"], axes, a.get("epsilon", 0.0)))


def _normalization(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, a = there(x[0]), node.attributes
    return one(along(given, a["function"], range(axis_of(node, given.ndim, -1), given.ndim), a["epsilon"]))


OPERATORS: dict[str, Operator] = {
    "rows": Operator("number", _rows, _rows_compute),
    "Normalization": Operator("number", same, _normalization),
}
