"""com.microsoft's Attention and MultiHeadAttention in products and Softmax, once their shapes are known
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..graph.graph import Node, Spec
from .functions import Body
from .reading import Reading
from .tensors import NEWEST

FILTER = -10000.0  # is added to the scores of what a mask hides
KNOWN = {"num_heads", "scale", "mask_filter_value", "unidirectional"}
# Of each operator: the inputs that are read, the mask's and the added bias's place.
PLACES = {"Attention": (6, 3, 5), "MultiHeadAttention": (6, 4, 5)}


def written(node: Node, specs: Sequence[Spec | None]) -> Body | None:
    """The nodes and constants of an attention without a cache, in float32; None for other forms and other
    operators."""
    op, a = node.attributes["op"], node.attributes["attributes"]
    if node.attributes["domain"] != "com.microsoft" or op not in PLACES or not set(a) <= KNOWN:
        return None
    inner = Node(op, node.inputs, node.outputs, a, node.source)
    of = dict(enumerate(specs))
    if any(node.outputs[1:]) or not _plain(inner, of):
        return None
    reading = Reading(NEWEST, {}, {*node.inputs, *node.outputs})
    parts = _projected(reading, inner, of) if op == "Attention" else _given(reading, inner, of)
    if parts is None:
        return None
    _attend(reading, inner, of, *parts)
    return reading.nodes, reading.constants


def _plain(node: Node, of: dict[int, Spec | None]) -> bool:
    """Whether the inputs are the known ones, of known types and ranks, and the heads divide the width."""
    most, mask, _ = PLACES[node.op]
    found = {i: spec for i, spec in of.items() if spec is not None}
    past = 4 if node.op == "Attention" else most
    if any(i >= most or i == past for i in found) or 0 not in found or len(found[0].shape) != 3:
        return False
    if any(spec.dtype != "float32" for i, spec in found.items() if i != mask):
        return False
    if mask in found and (found[mask].dtype not in ("int32", "int64") or len(found[mask].shape) != 2):
        return False
    heads = node.attributes.get("num_heads", 0)
    return isinstance(heads, int) and heads > 0 and all(0 not in spec.shape for spec in found.values())


def _projected(reading: Reading, node: Node, of: dict[int, Spec | None]) -> list[str] | None:
    """q, k and v of Attention: thirds of x @ weights + bias."""
    weights = of.get(1)
    if weights is None or len(weights.shape) != 2 or weights.shape[1] % (3 * node.attributes["num_heads"]):
        return None
    x = reading.emit(node, "MatMul", node.inputs[:2])
    x = reading.emit(node, "Add", [x, node.inputs[2]]) if node.input(2) else x
    return [_third(reading, node, x, i, weights.shape[1] // 3) for i in range(3)]


def _third(reading: Reading, node: Node, x: str, i: int, width: int) -> str:
    """Of the last axis."""
    ends = [reading.constant(np.array([n]), f"{x}/{i}") for n in (i * width, (i + 1) * width, -1)]
    return reading.emit(node, "Slice", [x, *ends])


def _given(reading: Reading, node: Node, of: dict[int, Spec | None]) -> list[str] | None:
    """q, k and v of MultiHeadAttention, each plus its part of the bias."""
    specs = [of.get(i) for i in range(3)]
    if any(spec is None or len(spec.shape) != 3 for spec in specs):
        return None
    widths = [spec.shape[2] for spec in specs if spec]
    if len(set(widths)) > 1 or widths[0] % node.attributes["num_heads"]:
        return None
    names = list(node.inputs[:3])
    if node.input(3):
        thirds = [_third(reading, node, node.inputs[3], i, widths[0]) for i in range(3)]
        names = [reading.emit(node, "Add", pair) for pair in zip(names, thirds, strict=True)]
    return names


def _attend(reading: Reading, node: Node, of: dict[int, Spec | None], q: str, k: str, v: str) -> None:
    """Softmax(q k^T * scale + bias + masks) v for each head."""
    a, (_, mask, added) = node.attributes, PLACES[node.op]
    x, y, heads = of[0], node.outputs[0], a["num_heads"]
    keys = of[1] if node.op == "MultiHeadAttention" else x
    width = (of[1].shape[1] // 3) if node.op == "Attention" else x.shape[2]  # type: ignore[union-attr]
    split, whole = (reading.constant(np.array(n), f"{y}/shape") for n in ((0, 0, heads, -1), (0, 0, width)))

    def by_head(name: str, *perm: int) -> str:
        return reading.emit(node, "Transpose", [reading.emit(node, "Reshape", [name, split])], perm=perm)

    def number(value: object) -> str:
        return reading.constant(np.asarray(value, np.float32), f"{y}/number")

    scores = reading.emit(node, "MatMul", [by_head(q, 0, 2, 1, 3), by_head(k, 0, 2, 3, 1)])
    scale = a.get("scale", 0.0) or 1 / math.sqrt(width // heads)
    scores = reading.emit(node, "Mul", [scores, number(scale)])
    if node.input(added):
        scores = reading.emit(node, "Add", [scores, node.inputs[added]])
    if node.input(mask):
        axes = reading.constant(np.array([1, 2]), f"{y}/axes")
        seen = reading.emit(
            node, "Cast", [reading.emit(node, "Unsqueeze", [node.inputs[mask], axes])], to="bool"
        )
        hidden = reading.emit(node, "Where", [seen, number(0), number(a.get("mask_filter_value", FILTER))])
        scores = reading.emit(node, "Add", [scores, hidden])
    if a.get("unidirectional", 0):
        rows, columns = (np.arange(spec.shape[1]) for spec in (x, keys) if spec)
        causal = number(np.where(columns > rows[:, None], np.finfo(np.float32).min, 0))
        scores = reading.emit(node, "Add", [scores, causal])
    weights = reading.emit(node, "Softmax", [scores], axis=-1)
    mixed = reading.emit(node, "MatMul", [weights, by_head(v, 0, 2, 1, 3)])
    mixed = reading.emit(node, "Transpose", [mixed], perm=(0, 2, 1, 3))
    reading.emit(node, "Reshape", [mixed, whole], y)
