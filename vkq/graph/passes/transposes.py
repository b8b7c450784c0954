"""Joins or cancels Transposes, and removes Transposes that move no element.

A product of two 8-bit activations can read its second operand transposed. So the pass inserts a Transpose of
the operand, which may cancel a Transpose before it. The product can also read an operand whose heads are
stored side by side."""

from __future__ import annotations

from ...problem.heads import SWAPPED, together
from ..graph import Graph, Node
from ..operators.movement import permutation
from .sweep import Sweep, swept


def join_transposes(graph: Graph) -> Graph:
    """Join successive Transposes, and remove pairs that undo each other. A Transpose that moves only axes of
    length 1 becomes a Reshape."""
    return swept(graph, _visit, "Transpose", "matmul")


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op == "matmul":
        return _columns(sweep, node)
    perm = permutation(node, len(sweep.specs[node.inputs[0]].shape))
    name = _transposed(sweep, node.inputs[0], perm, node.outputs[0], node.source)
    if name != node.outputs[0]:
        sweep.alias(node.outputs[0], name)
    return True


def _columns(sweep: Sweep, node: Node) -> bool:
    if node.attributes.get("rows"):
        return False
    a, b = node.inputs
    rank = len(sweep.specs[b].shape)
    b = _transposed(sweep, b, [*range(rank - 2), rank - 1, rank - 2], sweep.fresh(f"{b}/rows"), node.source)
    (a, of_a), (b, of_b) = (_side_by_side(sweep, name) for name in (a, b))
    attributes = {**node.attributes, "rows": True, "heads": (of_a, of_b, 1)}
    sweep.emit("matmul", [a, b], node.outputs[0], node.source, **attributes)
    return True


def _side_by_side(sweep: Sweep, name: str) -> tuple[str, int]:
    """Return (value, heads): the value that a product reads in place of the operand *name*, and the number of
    heads that the value stores side by side. If a Reshape and a Transpose have split the heads, the value is
    the input of the Reshape. Otherwise the value is the operand itself, with 1 head."""
    turned = sweep.producer(name, "Transpose")
    made = sweep.producer(turned.inputs[0], "Reshape") if turned else None
    if turned is None or made is None:
        return name, 1
    # More than one Reshape may come before the Transpose, for example one that was a Squeeze.
    while (before := sweep.producer(made.inputs[0], "Reshape")) is not None:
        made = before
    given, shape = sweep.specs[made.inputs[0]].shape, sweep.specs[name].shape
    if len(shape) != 4 or tuple(permutation(turned, 4)) != SWAPPED or shape[1] == 1:
        return name, 1
    whole = together(shape, shape[1])
    if given == (whole[0] * whole[1], whole[2]):
        return sweep.reshape(made.inputs[0], whole, source=made.source), shape[1]
    return (made.inputs[0], shape[1]) if given == whole else (name, 1)


def _transposed(sweep: Sweep, source: str, perm: list[int], output: str, label: str) -> str:
    """Emit the Transpose of *source* by *perm*, merged with a Transpose before it, and return the result's
    name. If a node is emitted, its result has the name *output*."""
    before = sweep.producer(source, "Transpose")
    if before is not None:
        first = permutation(before, len(perm))
        source, perm = before.inputs[0], [first[a] for a in perm]
    given = sweep.specs[source].shape
    if perm == list(range(len(perm))):
        return source
    long = [a for a in perm if given[a] > 1]
    if long == sorted(long):
        return sweep.reshape(source, [given[a] for a in perm], output, label)
    return sweep.emit("Transpose", [source], output, label, perm=tuple(perm))
