"""Replaces attention over int8 caches (``unpack_cache``), written as MatMul, Softmax and MatMul, by one
``attention_int8`` node."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ...errors import ModelError
from ...numerics.attention import MOST_WIDTH
from ...numerics.attention_int8 import Int8Rules
from ..graph import Graph, Node
from ..operators.movement import permutation
from .attended import Laid, Mask, followed, masks
from .sweep import Sweep, scalar

UNPACK = "unpack_cache"
HEADS_FIRST = (0, 2, 1, 3)  # the permutation between (batch, tokens, heads, d) and (batch, heads, tokens, d)


@dataclasses.dataclass(frozen=True)
class Cached:
    """An int8 cache (batch, groups, keys, words) of vectors of *width* elements. Attention multiplies the
    vectors by *factor*."""

    words: str
    width: int
    factor: float


def cached(sweep: Sweep, laid: Laid) -> Cached | None:
    """If *laid* is an unpacked int8 cache with the axes (batch, heads, keys, elements), return the cache.
    Return None for other values."""
    found, factor = _without_factors(sweep, laid)
    made = sweep.producer(found.name, UNPACK)
    if made is None or found.axes != (0, 1, 2, 3):
        return None
    return Cached(made.inputs[0], made.attributes["width"], factor)


def _without_factors(sweep: Sweep, laid: Laid) -> tuple[Laid, float]:
    """Follow a value back through multiplications and divisions by constants. Return (the value before these
    nodes, the product of the factors). Exporters split the scale of the scores into a factor of the queries
    and a factor of the keys."""
    factor, found = 1.0, followed(sweep, laid, None)
    while (made := sweep.producer(found.name, "Mul", "Div")) is not None:
        name, own = constant_factor(sweep, made)
        if own is None or own == 0 or sweep.specs[name].shape != sweep.specs[found.name].shape:
            break
        factor *= own if made.op == "Mul" else 1 / own
        found = followed(sweep, Laid(name, found.axes), None)
    return found, factor


def constant_factor(sweep: Sweep, node: Node) -> tuple[str, float | None]:
    """Return (the variable operand of a Mul or Div, the constant factor or divisor). The constant is None if
    no operand is a constant with one element."""
    first, second = node.inputs
    factor = scalar(sweep.array(second))
    if factor is None and node.op == "Mul":
        first, factor = second, scalar(sweep.array(first))
    return first, None if factor is None else float(factor)


@dataclasses.dataclass(frozen=True)
class CachedScores:
    """Scores of queries *q* against the keys of an int8 cache. `Softmaxed` in `vkq.graph.passes.attention`
    describes the other fields."""

    q: Laid
    scale: float
    added: Sequence[Mask]
    guarded: bool


def attend_cached(
    sweep: Sweep, scores: CachedScores, k: Cached, v: Cached, whole: tuple[int, ...], node: Node
) -> bool:
    """Replace *node*, the MatMul of attention weights and values, by ``attention_int8`` over the caches k and
    v. *whole*: the shape of the scores (batch, heads, queries, keys). Return False if the operator does not
    support the sizes of the caches or the masks."""
    (batch, heads, queries, keys), source = whole, node.source
    of_k, of_v = sweep.specs[k.words].shape, sweep.specs[v.words].shape
    laid, of_q = _without_factors(sweep, scores.q)
    q, axes = laid.name, laid.axes
    width = sweep.specs[q].shape[axes[3]]
    if of_k != of_v or (of_k[0], of_k[2]) != (batch, keys) or heads % of_k[1]:
        return False
    if {k.width, v.width} != {width} or v.factor != 1.0 or width > MOST_WIDTH:
        return False
    seen, bias, _ = masks(sweep, scores.added, whole, placing=False)
    if seen.causal and seen.start not in (0, keys - queries):
        return False
    rows = axes[0], axes[2], axes[1], axes[3]
    q = q if rows == (0, 1, 2, 3) else sweep.emit("Transpose", [q], "", source, perm=rows)
    q = q if sweep.specs[q].dtype == "float32" else sweep.emit("Cast", [q], "", source, to="float32")
    scale = float(np.float32(scores.scale * of_q * k.factor))
    rules = Int8Rules(width, scale, seen.start != 0, seen.window, 0.0, seen.causal, scores.guarded)
    lengths = sweep.constant(np.full(batch, keys, np.int32), "lengths")
    inputs = [q, k.words, v.words, lengths, bias, ""]
    fused = "reads the int8 cache: MatMul, Softmax and MatMul in one operator"
    y = sweep.emit("attention_int8", inputs, "", source, rules=rules, fused=fused)
    old = sweep.old.specs[node.outputs[0]]
    y = y if old.dtype == "float32" else sweep.emit("Cast", [y], "", source, to=old.dtype)
    direct = node.outputs[0] if old.shape == (*whole[:3], width) else ""
    y = sweep.emit("Transpose", [y], direct, source, perm=HEADS_FIRST)
    if not direct:
        sweep.reshape(y, old.shape, node.outputs[0], source)
    return True


def result_turned_back(sweep: Sweep, node: Node) -> bool:
    """If *node* reverses the Transpose after an ``attention_int8``, replace the result of *node* by the input
    of that Transpose. Return True if the result was replaced."""
    made = sweep.producer(node.inputs[0], "Transpose")
    before = made and sweep.producer(made.inputs[0], "attention_int8", "Cast")
    if made is None or before is None:
        return False
    if before.op == "Cast" and sweep.producer(before.inputs[0], "attention_int8") is None:
        return False
    if tuple(permutation(made, 4)) != HEADS_FIRST or tuple(permutation(node, 4)) != HEADS_FIRST:
        return False
    sweep.alias(node.outputs[0], made.inputs[0])
    return True


def check_unpacked(graph: Graph) -> Graph:
    """Return the graph unchanged. Raises ModelError if a node other than attention reads an unpacked int8
    cache."""
    found = {node.outputs[0]: node for node in graph.nodes if node.op == UNPACK}
    for node in graph.nodes if found else ():
        if numbers := found.keys() & set(node.inputs):
            raise ModelError(
                f"{found[min(numbers)]}: kv_cache='int8' does not support this form: {node} reads the cache;"
                " only attention written as MatMul, scale, masks, Softmax and MatMul may read it, with keys"
                " and values of equal sizes; leave kv_cache out"
            )
    return graph
