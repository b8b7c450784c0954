"""Reductions and normalizations of rows (`vkq.numerics.rows`). A row spans one or more neighbouring axes.

rows: applies ``function`` to rows of ``count`` axes from ``axis`` on; a reduction removes these axes.
Optional attributes, in the order of the computation:
- ``prologue``: element-wise operators on the node's first inputs. The prologue's first result is the input of
  the function; its second result, if any, is the node's second result. ``reads``: the kind of each input of
  the prologue (`vkq.kernels.row_form`)
- ``x``, instead of a prologue: the QParams of a quantized input
- ``chain``: element-wise operators on the function's result. ``operands``: for each operand of the chain,
  whether it is the function's result or one of the node's remaining inputs (`vkq.kernels.rows`)
- ``y``: the QParams that quantize the result. ``real``: True to dequantize the quantized result again

Normalization: applies ``function`` (normalize, normalize_root) to all axes from ``axis`` on, like a
LayerNormalization without scale and bias."""

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
    """Apply *function* to rows that consist of the axes *axes* of an array. float16 elements are converted
    to float32 for the computation."""
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
    a, before = x.node.attributes, x.node.attributes.get("prologue")
    first = x.spec(0).shape
    shape = (
        first if before is None else np.broadcast_shapes(*(x.spec(i).shape for i in range(len(a["reads"]))))
    )
    kept = shape if FUNCTIONS[a["function"]].each else (*shape[: a["axis"]], *shape[a["axis"] + a["count"] :])
    chain = a.get("chain")
    real = "float32" if chain is None or "y" in a else chain.types[chain.results[0]]
    y = Spec(a["y"].dtype if "y" in a and not a.get("real") else real, kept)
    return [y, *(Spec(before.types[i], shape) for i in before.results[1:])] if before else [y]


def _rows_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    axes, second = range(a["axis"], a["axis"] + a["count"]), []
    given, others = dequantize(there(x[0]), a["x"]) if "x" in a else there(x[0]), iter(x[1:])
    if "prologue" in a:
        count = len(a["reads"])
        given, *second = a["prologue"].computed(*map(there, x[:count]))
        others = iter(x[count:])
    found = along(given, a["function"], axes, a.get("epsilon", 0.0))
    if "chain" in a:
        operands = [found if way == RESULT else there(next(others)) for way in a["operands"]]
        found = np.broadcast_to(a["chain"].computed(*operands)[0], found.shape)
    found = quantize(found, a["y"]) if "y" in a else found
    return [np.asarray(dequantize(found, a["y"]) if a.get("real") else found), *second]


def _normalization(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, a = there(x[0]), node.attributes
    return one(along(given, a["function"], range(axis_of(node, given.ndim, -1), given.ndim), a["epsilon"]))


OPERATORS: dict[str, Operator] = {
    "rows": Operator("number", _rows, _rows_compute),
    "Normalization": Operator("number", same, _normalization),
}
