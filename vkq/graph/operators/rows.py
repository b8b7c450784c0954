"""Reductions and normalizations of rows (`vkq.numerics.rows`). A row spans one or more neighbouring axes.

rows: applies ``function`` to rows of ``count`` axes from ``axis`` on; a reduction removes these axes.
Optional attributes, in the order of the computation: ``x``, the QParams of a quantized input; ``chain``,
element-wise operators on the results, whose ``operands`` (`vkq.kernels.rows`) are the node's other inputs;
``y``, the QParams that quantize the results; ``real``, True to dequantize them again.

Normalization: applies ``function`` (normalize, normalize_root) to all axes from ``axis`` on, as
LayerNormalization does without scale and bias."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...kernels.row_form import RESULT
from ...numerics.quantize import dequantize, quantize
from ...numerics.rows import FUNCTIONS, computed_rows
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, axis_of, one, same, there


def along(x: Array, function: str, axes: Sequence[int], epsilon: float = 0.0) -> Array:
    """Apply *function* to rows that consist of the axes *axes* of an array. float16 elements are computed
    as float32."""
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
    shape = spec.shape if FUNCTIONS[a["function"]].each else kept
    return [Spec(a["y"].dtype if "y" in a and not a.get("real") else "float32", shape)]


def _rows_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    axes = range(a["axis"], a["axis"] + a["count"])
    given = dequantize(there(x[0]), a["x"]) if "x" in a else there(x[0])
    found = along(given, a["function"], axes, a.get("epsilon", 0.0))
    if "chain" in a:
        others = iter(x[1:])
        operands = [found if way == RESULT else there(next(others)) for way in a["operands"]]
        found = np.broadcast_to(a["chain"].computed(*operands)[0], found.shape)
    found = quantize(found, a["y"]) if "y" in a else found
    return one(dequantize(found, a["y"]) if a.get("real") else found)


def _normalization(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, a = there(x[0]), node.attributes
    return one(along(given, a["function"], range(axis_of(node, given.ndim, -1), given.ndim), a["epsilon"]))


OPERATORS: dict[str, Operator] = {
    "rows": Operator("number", _rows, _rows_compute),
    "Normalization": Operator("number", same, _normalization),
}
