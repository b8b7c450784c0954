"""Removes replacements of NaN in values that contain no NaN. PyTorch exports attention weights p as
``Where(IsNaN(p), 0, p)``."""

from __future__ import annotations

from ..graph import Graph, Node
from ..operators.movement import moves
from .sweep import Sweep, swept


def without_guards(graph: Graph) -> Graph:
    """Remove each Where that replaces NaN in a value that contains no NaN."""
    return swept(graph, _visit, "Where")


def _visit(sweep: Sweep, node: Node) -> bool:
    made = sweep.producer(node.inputs[0], "IsNaN", "foreign")
    if made is None or made.attributes.get("op", made.op) != "IsNaN" or not _finite(sweep, made.inputs[0]):
        return False
    x, spec = node.inputs[2], sweep.specs[node.inputs[2]]
    sweep.keep(node)
    whole = sweep.specs[node.outputs[0]] == spec
    if whole:  # A Where that also broadcasts p cannot be removed.
        sweep.nodes.pop()
        del sweep.made[node.outputs[0]]
        sweep.alias(node.outputs[0], x)
    return True


def _finite(sweep: Sweep, name: str) -> bool:
    """Return True if a value is known to contain no NaN: it is a dequantized value, or a softmax or a
    movement of dequantized values."""
    made = sweep.producer(name)
    while made is not None and (made.op == "Softmax" or (moves(made) and made.op not in ("Concat", "Pad"))):
        made = sweep.producer(made.inputs[0])
    return made is not None and made.op == "dequantize"
