"""Fuses attention written as MatMul, scale, masks, Softmax and MatMul into one node.

Which attention is fused depends on its rows, the queries of all heads that share keys:

- at least ROWS rows: if the score matrices have at least SCORES_BYTES
- fewer rows, such as one token of a decoder: if there are at least KEYS keys, or if the score matrices have
  more than MOST_BYTES

These conditions do not depend on the device, so that results have the same bits on every device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ...kernels.attention import AttentionSizes, turns
from ...numerics.attention import MOST_WIDTH
from ..graph import Graph, Node
from ..operators.attention import moved
from ..operators.movement import moves, permutation
from ..operators.operator import axis_of
from .attended import FLOATS, LEAST, ONE_BY_ONE, Mask, laid, laid_keys, laid_rows, masks
from .attention_cached import (
    CachedScores,
    attend_cached,
    cached,
    check_unpacked,
    constant_factor,
    result_turned_back,
)
from .sweep import Sweep, scalar, swept

SCORES_BYTES, ROWS, MOST_BYTES, KEYS = 1 << 24, 16, 1 << 26, 256
MOST_ITERATIONS = 65_000  # maximum number of loop iterations that all drivers accept
BETWEEN = ("Add", "Where", "Mul", "Div", "MatMul")


@dataclasses.dataclass(frozen=True)
class Softmaxed:
    """The input of Softmax: the result of the MatMul ``product``, times ``scale``, with the masks ``added``
    applied in order. ``guarded``: NaN results of Softmax are replaced by 0."""

    product: Node
    scale: float
    added: tuple[Mask, ...]
    guarded: bool


def fuse_attention(graph: Graph) -> Graph:
    """Fuse each attention with a large score matrix, or with int8 caches, into one node."""
    found = swept(graph, _visit, "MatMul", "Transpose", "Cast") if "Softmax" in graph.kinds else graph
    return check_unpacked(found)


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op == "Transpose":
        return _result_as_read(sweep, node)
    if node.op == "Cast":
        return _result_rounded(sweep, node)
    if node.op != "MatMul" or sweep.specs[node.inputs[0]].dtype not in FLOATS:
        return False
    softmax, guarded = _softmax(sweep, node.inputs[0])
    shape = sweep.specs[softmax.inputs[0]].shape if softmax is not None else ()
    if softmax is None or len(shape) not in (3, 4) or axis_of(softmax, len(shape), -1) != len(shape) - 1:
        return False
    weights = _weights(sweep, softmax, guarded)
    return weights is not None and _fused(sweep, node, weights, shape)


def _softmax(sweep: Sweep, name: str) -> tuple[Node | None, bool]:
    """Return (softmax, guarded). softmax: the Softmax that computes the attention weights *name*, or None.
    guarded: True if a Where replaces NaN results of the Softmax by 0, as in PyTorch's exports."""
    guard = _alone(sweep, name, "Softmax", "Where")
    if guard is None or guard.op == "Softmax":
        return guard, False
    flags, zero, p = guard.inputs
    made, asked = sweep.producer(p, "Softmax"), sweep.producer(flags, "IsNaN", "foreign")
    if made is None or asked is None or asked.inputs[0] != p or scalar(sweep.array(zero)) != 0:
        return None, False
    nan = asked.attributes.get("op", asked.op) == "IsNaN" and sweep.uses.get(p) == 2
    return (made if nan and sweep.uses.get(flags) == 1 else None), True


def _alone(sweep: Sweep, name: str, *ops: str) -> Node | None:
    """Follow a value back through Reshapes to the node that computes its elements. Return this node. Return
    None if the node's operator is not in *ops*, or if the value or a Reshape's input has several readers."""
    while sweep.uses.get(name, 1) == 1:
        made = sweep.producer(name)
        if made is None or made.op in ops or made.op != "Reshape":
            return made if made is not None and made.op in ops else None
        name = made.inputs[0]
    return None


def _weights(sweep: Sweep, softmax: Node, guarded: bool) -> Softmaxed | None:
    added: list[Mask] = []
    name, scale, shape = softmax.inputs[0], 1.0, sweep.specs[softmax.inputs[0]].shape
    while (made := _alone(sweep, name, *BETWEEN)) is not None:
        if made.op == "MatMul":
            return Softmaxed(made, scale, tuple(added[::-1]), guarded)
        if scale != 1.0 or sweep.specs[made.outputs[0]].shape != shape:
            # Not supported: a mask or a second factor between the MatMul and the factor; a mask that
            # broadcasts the scores to a larger shape.
            return None
        if made.op in ("Mul", "Div"):
            name, factor = constant_factor(sweep, made)
            if factor is None or not np.isfinite(factor) or factor == 0:
                return None
            scale = float(np.float32(factor if made.op == "Mul" else 1 / np.float64(factor)))
            continue
        found = _sum(sweep, made, shape) if made.op == "Add" else _choice(sweep, made)
        if found is None:
            return None
        name = found[0]
        added.append(found[1])
    return None


def _sum(sweep: Sweep, node: Node, shape: tuple[int, ...]) -> tuple[str, Mask] | None:
    """Return (scores, mask) of an Add of scores and a mask; None if neither operand has the shape of the
    scores."""
    own = [x for x in node.inputs if sweep.specs[x].shape == shape and sweep.array(x) is None]
    own.sort(key=lambda x: _alone(sweep, x, *BETWEEN) is None)
    if not own:
        return None
    return own[0], Mask(node.inputs[1] if own[0] == node.inputs[0] else node.inputs[0])


def _choice(sweep: Sweep, node: Node) -> tuple[str, Mask] | None:
    """Return (scores, mask) of a Where that replaces scores by a large negative constant; None for any
    other Where."""
    flags, *both = node.inputs
    for inverted, (name, other) in enumerate((both, both[::-1])):
        low = scalar(sweep.array(other))
        if low is not None and low <= LEAST:
            return name, Mask(flags, float(low), bool(inverted))
    return None


def _fused(sweep: Sweep, node: Node, weights: Softmaxed, shape: Sequence[int]) -> bool:
    given = (*weights.product.inputs, node.inputs[1])
    ranks = {len(sweep.specs[x].shape) for x in given}
    batch, heads, queries, keys = whole = (1, *shape)[-4:]
    rows = math.prod(sweep.specs[given[0]].shape[:-1])
    if not ranks <= {3, 4} or any(_quantized(sweep, x) for x in given) or rows != batch * heads * queries:
        return False
    q, k = laid_rows(sweep, given[0], whole), laid_keys(sweep, given[1], batch)
    v = laid(sweep, given[2], batch)
    caches = cached(sweep, k), cached(sweep, v)
    if caches[0] and caches[1]:
        scores = CachedScores(q, weights.scale, weights.added, weights.guarded)
        return attend_cached(sweep, scores, caches[0], caches[1], whole, node)
    shapes = [moved(sweep.specs[x.name].shape, x.axes) for x in (q, k, v)]
    sizes = AttentionSizes(batch, heads, shapes[1][1], queries, keys, shapes[0][3], shapes[2][3])
    like = (batch, sizes.groups, keys)
    if shapes[1] != (*like, sizes.depth) or shapes[2] != (*like, sizes.width) or not gains(sizes):
        return False
    seen, bias, places = masks(sweep, weights.added, whole)
    inputs = [q.name, k.name, v.name, *([bias, places] if places else [bias] if bias else [])]
    old = sweep.old.specs[node.outputs[0]]
    direct = old.shape == (batch, heads, queries, sizes.width)
    y = sweep.emit(
        "attention", inputs, node.outputs[0] if direct else "", node.source or weights.product.source,
        axes=(q.axes, k.axes, v.axes, ONE_BY_ONE), scale=weights.scale, seen=seen, guarded=weights.guarded,
        dtype=old.dtype,
        fused=f"one kernel in place of two MatMul and Softmax: {4 * math.prod(shape)} bytes of scores",
    )  # fmt: skip
    if not direct:
        sweep.reshape(y, old.shape, node.outputs[0], node.source)
    return True


def gains(sizes: AttentionSizes) -> bool:
    """Return True if attention of these sizes should be fused: the fused kernel supports the sizes, and the
    conditions in the module's docstring hold."""
    held = 4 * sizes.batch * sizes.heads * sizes.queries * sizes.keys
    if not held or not sizes.depth * sizes.groups or sizes.heads % sizes.groups:
        return False
    if not 0 < sizes.width <= MOST_WIDTH or turns(sizes) > MOST_ITERATIONS:
        return False
    if sizes.lines < ROWS:
        return held > MOST_BYTES or sizes.keys >= KEYS
    return held >= SCORES_BYTES


def _quantized(sweep: Sweep, name: str) -> bool:
    """Return True if a value is dequantized from 8 bits, perhaps with movements after the dequantize.
    Attention on dequantized values is left to the integer operators."""
    made = sweep.producer(name)
    while made is not None and moves(made):
        made = sweep.producer(made.inputs[0])
    return made is not None and made.op in ("dequantize", "DequantizeLinear")


# --------------------------------------------------------------------------------------------------- result


def _result_as_read(sweep: Sweep, node: Node) -> bool:
    """Fuse a Transpose into the attention that computes its input, if nothing else reads this input."""
    if result_turned_back(sweep, node):
        return True
    made = _alone(sweep, node.inputs[0], "attention")
    rank = len(sweep.specs[node.inputs[0]].shape)
    if made is None or rank != 4 or sweep.specs[made.outputs[0]].shape != sweep.specs[node.inputs[0]].shape:
        return False
    perm = tuple(permutation(node, rank))
    if perm[3] != 3 or made.attributes["axes"][3] != ONE_BY_ONE:
        return False
    inverse = tuple(perm.index(a) for a in range(4))
    attributes = {**made.attributes, "axes": (*made.attributes["axes"][:3], inverse)}
    sweep.keep(Node("attention", made.inputs, node.outputs, attributes, made.source))
    return True


def _result_rounded(sweep: Sweep, node: Node) -> bool:
    """Fuse a Cast to float16 into the attention that computes its input, if nothing else reads this input."""
    made = _alone(sweep, node.inputs[0], "attention") if node.attributes["to"] == "float16" else None
    if made is None:
        return False
    shape, own = sweep.specs[node.inputs[0]].shape, sweep.specs[made.outputs[0]].shape
    y = node.outputs[0] if shape == own else ""
    y = sweep.emit("attention", made.inputs, y, made.source, **{**made.attributes, "dtype": "float16"})
    if shape != own:
        sweep.reshape(y, shape, node.outputs[0], node.source)
    return True
