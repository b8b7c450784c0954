"""Running sums and products, top-k, scattered rows, and weighted sums along an axis.

scatter: inputs (rows, inner), ids (count,) and updates (count, inner). ``reduction`` combines row ids[i]
with updates[i], for each i in ascending order.

place: inputs (batch, lines, rows, inner), int32 start (batch,) and updates (batch, lines, count, inner). The
updates replace the rows from start[batch] on; after the last row, they continue at row 0.

topk: the ``k`` largest (or smallest) elements of each row of an array (rows, length), sorted, and their
indices; equal elements keep their order.

taps: each element of the result is a weighted sum (``weight``) of the elements of x at the positions
``index`` along ``axis``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import ModelError
from ...kernels.taps import computed_taps
from ...numerics.lines import REDUCTIONS, keys, running, scattered
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, axis_of, one, same, there

__all__ = ["REDUCTIONS"]
TYPES = ("float32", "float16", "int32")


def running_axis(node: Node, rank: int, given: Array | None) -> int:
    """Return the axis of a CumSum or CumProd. *given*: the array of the input axis."""
    axis = int(there(given).reshape(-1)[0])
    return axis_of(Node(node.op, node.inputs, node.outputs, {"axis": axis}, node.source), rank)


def _running(x: Inputs) -> list[Spec]:
    running_axis(x.node, len(x.spec(0).shape), x.array(1))
    return [x.spec(0)]


def _running_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = there(x[0])
    axis = running_axis(node, given.ndim, x[1])
    how = "add" if node.op == "CumSum" else "mul"
    backwards, exclusive = (bool(node.attributes.get(key, 0)) for key in ("reverse", "exclusive"))
    lines = np.moveaxis(given, axis, -1)
    found = running(how, lines[..., ::-1] if backwards else lines, exclusive)
    return one(np.moveaxis(found[..., ::-1] if backwards else found, -1, axis))


def _topk(x: Inputs) -> list[Spec]:
    lines, length = x.spec(0).shape
    k = int(x.node.attributes["k"])
    if not 0 <= k <= length:
        raise ModelError(f"{x.node}: k is {k} and a row has {length} elements")
    return [Spec(x.spec(0).dtype, (lines, k)), Spec("int32", (lines, k))]


def _topk_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, k = there(x[0]), int(node.attributes["k"])
    key = keys(given).astype(np.int64)
    order = np.argsort(-key if node.attributes["largest"] else key, axis=1, kind="stable")[:, :k]
    return [np.take_along_axis(given, order, 1), order.astype(np.int32)]


def _scatter_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    return one(scattered(node.attributes["reduction"], there(x[0]), there(x[1]), there(x[2])))


def placed(x: Array, starts: Array, updates: Array) -> Array:
    """Return the result of the operator ``place``, which the module's docstring describes."""
    found: Array = x.copy()
    for own, start, rows in zip(found, starts.tolist(), updates, strict=True):
        own[:, (start + np.arange(rows.shape[1])) % own.shape[1]] = rows
    return found


def _place_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    return one(placed(there(x[0]), there(x[1]), there(x[2])))


def _taps(x: Inputs) -> list[Spec]:
    a, spec = x.node.attributes, x.spec(0)
    return [Spec("float32", (*spec.shape[: a["axis"]], len(a["index"]), *spec.shape[a["axis"] + 1 :]))]


def _taps_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    return one(computed_taps(there(x[0]), a["axis"], a["index"], a["weight"]))


OPERATORS: dict[str, Operator] = {
    "CumSum": Operator("number", _running, _running_compute),
    "CumProd": Operator("number", _running, _running_compute),
    "topk": Operator("number", _topk, _topk_compute),
    "taps": Operator("number", _taps, _taps_compute),
    "scatter": Operator("number", same, _scatter_compute),
    "place": Operator("number", same, _place_compute),
}
