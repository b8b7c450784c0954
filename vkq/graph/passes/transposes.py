"""Transposes that cancel or join, and those that move no element."""

from __future__ import annotations

import numpy as np

from ..graph import Graph, Node
from ..operators.movement import permutation
from .sweep import Sweep, swept


def join_transposes(graph: Graph) -> Graph:
    """The graph with one Transpose where several follow each other, and none where they undo each other; one
    that moves only axes of length 1 is a Reshape."""
    return swept(graph, _visit, "Transpose")


def _visit(sweep: Sweep, node: Node) -> bool:
    source, given = node.inputs[0], sweep.specs[node.inputs[0]].shape
    perm = permutation(node, len(given))
    before = sweep.producer(source, "Transpose")
    if before is not None:
        first = permutation(before, len(given))
        source, perm = before.inputs[0], [first[a] for a in perm]
        given = sweep.specs[source].shape
    if perm == list(range(len(perm))):
        sweep.alias(node.outputs[0], source)
        return True
    long = [a for a in perm if given[a] > 1]
    if long == sorted(long):
        shape = sweep.constant(np.array([given[a] for a in perm], np.int64), "shape")
        sweep.emit("Reshape", [source, shape], node.outputs[0], node.source, allowzero=1)
        return True
    sweep.emit("Transpose", [source], node.outputs[0], node.source, perm=tuple(perm))
    return True
