"""Removes guards that never apply: ``Where(IsNaN(p), 0, p)``, which PyTorch exports with attention, is p if
no number of p is NaN."""

from __future__ import annotations

from ..graph import Graph, Node
from ..operators.movement import moves
from .sweep import Sweep, swept


def without_guards(graph: Graph) -> Graph:
    """Remove selections by ``IsNaN`` of finite numbers."""
    return swept(graph, _visit, "Where")


def _visit(sweep: Sweep, node: Node) -> bool:
    made = sweep.producer(node.inputs[0], "IsNaN", "foreign")
    if made is None or made.attributes.get("op", made.op) != "IsNaN" or not _finite(sweep, made.inputs[0]):
        return False
    x, spec = node.inputs[2], sweep.specs[node.inputs[2]]
    sweep.keep(node)
    whole = sweep.specs[node.outputs[0]] == spec
    if whole:  # else it is repeated, too
        sweep.nodes.pop()
        del sweep.made[node.outputs[0]]
        sweep.alias(node.outputs[0], x)
    return True


def _finite(sweep: Sweep, name: str) -> bool:
    """Return True if a value was quantized, or is a softmax or a movement of finite numbers."""
    made = sweep.producer(name)
    while made is not None and (made.op == "Softmax" or (moves(made) and made.op not in ("Concat", "Pad"))):
        made = sweep.producer(made.inputs[0])
    return made is not None and made.op == "dequantize"
