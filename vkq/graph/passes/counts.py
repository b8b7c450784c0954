"""Gives small int32 vectors one shape, (n,), so that one chain of element-wise operators computes all
positions and lengths of a decoder. A Reshape between two operators would end the chain."""

from __future__ import annotations

import dataclasses
import math

from ..graph import Graph, Node, Spec
from ..operators.elementwise import OPERATORS
from .alike import CACHED
from .sweep import Sweep

MOST = 64  # maximum number of elements of a small vector


def flatten_counts(graph: Graph) -> Graph:
    """In a decoder's graph, give each small int32 vector the shape (n,), and move the node that computes the
    vector directly behind the nodes that compute its operands. Return other graphs unchanged."""
    if graph.kinds.isdisjoint(CACHED):
        return graph
    flat = Sweep(graph).run(_visit, {*OPERATORS, "Reshape"})
    return graph if flat is graph else dataclasses.replace(flat, nodes=_early(flat))


def _count(spec: Spec) -> int:
    """Return the number of elements of a small int32 vector (which may have further axes of length 1), or 0
    for other values."""
    size = math.prod(spec.shape)
    return size if spec.dtype == "int32" and size == max((*spec.shape, 1)) <= MOST else 0


def _visit(sweep: Sweep, node: Node) -> bool:
    if len(node.outputs) != 1 or not all((*node.inputs, *node.outputs)):
        return False
    result, operands = sweep.old.specs[node.outputs[0]], [sweep.specs[name] for name in node.inputs]
    count = _count(result)
    if node.op == "Reshape":
        before = _before(sweep, node.inputs[0], (count,)) if result.shape == (count,) else ""
        if before:
            sweep.alias(node.outputs[0], before)
        return bool(before)
    flat = all(len(spec.shape) <= 1 for spec in (result, *operands))
    if flat or not count or any(_count(spec) not in (1, count) for spec in operands):
        return False
    inputs = [_flat(sweep, name, node.source) for name in node.inputs]
    own = node.outputs[0] if result.shape == (count,) else ""
    found = sweep.emit(node.op, inputs, own, node.source, **node.attributes)
    if not own:
        sweep.reshape(found, result.shape, node.outputs[0], node.source)
    return True


def _flat(sweep: Sweep, name: str, source: str) -> str:
    """Return the name of a value with the elements of *name*, a small vector, in the shape (n,). It is a
    reshaped constant, an earlier value of this shape, or the result of a new Reshape."""
    array, shape = sweep.array(name), (_count(sweep.specs[name]),)
    if array is not None:
        return sweep.constant(array.reshape(shape), f"{name}/flat")
    return _before(sweep, name, shape) or sweep.reshape(name, shape, "", source)


def _before(sweep: Sweep, name: str, shape: tuple[int, ...]) -> str:
    """Follow the value *name* back through Reshapes to a value of the shape *shape*. Return the name of this
    value; "" if there is none."""
    while sweep.specs[name].shape != shape:
        made = sweep.producer(name, "Reshape")
        if made is None:
            return ""
        name = made.inputs[0]
    return name


def _early(graph: Graph) -> list[Node]:
    """Return the nodes in a new order. An element-wise node or Reshape that computes a small vector of the
    shape (n,) moves to an earlier place: directly after the last node that computes one of its operands."""
    place: dict[str, int] = {}
    keys = []
    for i, node in enumerate(graph.nodes):
        spec = graph.specs[node.outputs[0]]
        small = len(spec.shape) == 1 and _count(spec) and (node.op in OPERATORS or node.op == "Reshape")
        keys.append(max((place.get(name, -1) for name in node.inputs), default=-1) if small else i)
        place.update(dict.fromkeys(node.outputs, keys[-1]))
    return [node for _, node in sorted(zip(keys, graph.nodes, strict=True), key=lambda pair: pair[0])]
