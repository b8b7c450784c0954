"""The walk over a graph's nodes that every pass uses. A pass visits the nodes in order, and keeps or
replaces each of them. The pass can look up the node that computes an input."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import numpy as np

from ...errors import ModelError, VkqError
from ..graph import Array, Graph, Node, Spec, unused
from ..operators.table import infer

BROKEN = (VkqError, KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError)
# Constant folding may add MOST_FOLDED times the bytes of the model's constants, or LEAST_ROOM_BYTES if this
# is more. Without a limit, a small model could fill any memory.
MOST_FOLDED, LEAST_ROOM_BYTES = 4, 1 << 30


Visit = Callable[["Sweep", Node], bool]


class Sweep:
    """A new graph under construction. ``made`` maps each value of the new graph to the node that computes
    it."""

    def __init__(self, graph: Graph):
        self.old = graph
        self.constants, self.specs = dict(graph.constants), dict(graph.specs)
        self.nodes: list[Node] = []
        self.made: dict[str, Node] = {}
        self.same: dict[str, str] = {}  # maps an alias to the value that replaces it
        self._own = set(map(id, graph.nodes))
        self._outputs = {name for node in graph.nodes for name in node.outputs if name}
        # Values that the old graph lacks, or whose spec has changed.
        self._changed = self._outputs - graph.specs.keys()
        self._texts: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    @functools.cached_property
    def room_bytes(self) -> int:
        """The number of bytes that constant folding may still add to the graph."""
        own = sum(array.nbytes for array in self.old.constants.values())
        return max(MOST_FOLDED * own, LEAST_ROOM_BYTES)

    @functools.cached_property
    def _taken(self) -> set[str]:
        return {*self.specs, *self._outputs}

    # ------------------------------------------------------------------------------------------ looking back

    @functools.cached_property
    def uses(self) -> dict[str, int]:
        """The number of uses of each value in the old graph."""
        return self.old.uses()

    def array(self, name: str) -> Array | None:
        """Return the array of the constant *name*; None if no constant has this name."""
        return self.constants.get(name)

    def producer(self, name: str, *ops: str) -> Node | None:
        """Return the node that computes a value if its operator is in *ops* (default: any operator); else
        None."""
        node = self.made.get(name)
        return node if node is not None and (not ops or node.op in ops) else None

    # -------------------------------------------------------------------------------------------- new things

    def constant(self, array: Array, hint: str = "constant") -> str:
        """Add a constant and return its name. A small constant (at most 64 elements) is added once and
        reused."""
        key = (array.dtype.str, array.tobytes(), array.shape) if array.size <= 64 else ("", b"", ())
        if array.size <= 64 and key in self._texts:
            return self._texts[key]
        name = self.fresh(hint)
        self.constants[name], self.specs[name] = array, Spec.of(array)
        self._texts[key] = name
        return name

    def fresh(self, hint: str) -> str:
        """Return an unused name that begins with *hint*."""
        return unused(hint, self._taken)

    def emit(
        self, op: str, inputs: Sequence[str], output: str = "", source: str = "", **attributes: Any
    ) -> str:
        """Emit a node with one result. Return the name of the result: *output*, or a new name if *output*
        is ""."""
        name = output or self.fresh(f"{inputs[0]}/{op}")
        self.keep(Node(op, tuple(inputs), (name,), attributes, source))
        return name

    def reshape(self, x: str, shape: Sequence[int], output: str = "", source: str = "") -> str:
        """Emit a Reshape to the constant shape *shape*. Return the name of the result, as `emit` does."""
        wanted = self.constant(np.array(shape, np.int64), "shape")
        return self.emit("Reshape", [x, wanted], output, source, allowzero=1)

    def keep(self, node: Node) -> None:
        """Add a node to the new graph, and infer the specs of its results."""
        if not self._as_before(node):
            arrays = [self.constants.get(name) for name in node.inputs]
            found = infer(node, [self.specs[name] if name else None for name in node.inputs], arrays)
            for name, spec in zip(node.outputs, found, strict=False):
                if name:
                    self.hold(name, spec)
        self.nodes.append(node)
        for name in node.outputs:
            if name:
                self.made[name] = node

    def replace(self, old: Node, new: Node) -> bool:
        """Replace a node of the new graph by *new*, at the same place. Return False if a node after *old*
        computes an input of *new*."""
        place = next(i for i in reversed(range(len(self.nodes))) if self.nodes[i] is old)
        later = {name for node in self.nodes[place + 1 :] for name in node.outputs}
        if not later.isdisjoint(new.inputs):
            return False
        for name in old.outputs:
            self.made.pop(name, None)
        self.keep(new)
        self.nodes[place] = self.nodes.pop()
        return True

    def _as_before(self, node: Node) -> bool:
        """Return True if a node is an unchanged node of the old graph whose inputs and results have unchanged
        specs."""
        if id(node) not in self._own:
            return False
        changed = self._changed
        return not changed or (changed.isdisjoint(node.inputs) and changed.isdisjoint(node.outputs))

    def hold(self, name: str, spec: Spec) -> None:
        """Set the spec of the value *name*."""
        if self.old.specs.get(name) != spec:
            self._changed.add(name)
        self.specs[name] = spec

    def fold(self, name: str, array: Array) -> None:
        """Make the value *name* a constant with the elements *array*."""
        self.made.pop(name, None)
        self._changed.add(name)
        self.constants[name], self.specs[name] = array, Spec.of(array)

    def alias(self, name: str, other: str) -> None:
        """Let all readers of the value *name* read *other* instead."""
        self.same[name] = other

    # ---------------------------------------------------------------------------------------------- the walk

    def run(self, visit: Visit, ops: Container[str] | None = None) -> Graph:
        """Call `walk` with these arguments, and return the new graph."""
        self.walk(visit, ops)
        return self.finish(list(self.old.outputs))

    def walk(self, visit: Visit, ops: Container[str] | None = None) -> None:
        """Call *visit* for each node whose operator is in *ops* (None: all operators). A node is kept if
        *visit* returns False, or if it is not visited."""
        with np.errstate(all="ignore"):  # scales of a broken model may overflow
            for node in self.old.nodes:
                if self.same and not self.same.keys().isdisjoint(node.inputs):
                    inputs = tuple(self.same.get(name, name) for name in node.inputs)
                    node = Node(node.op, inputs, node.outputs, node.attributes, node.source)
                try:
                    if (ops is not None and node.op not in ops) or not visit(self, node):
                        self.keep(node)
                except ModelError:
                    raise
                # Causes are attributes of wrong types, negative scales, or shapes that do not match.
                except BROKEN as error:
                    raise ModelError(f"{node}: {type(error).__name__}: {error}") from error

    def finish(self, outputs: list[str]) -> Graph:
        """Return the new graph with the results *outputs*, under their old names."""
        for name in outputs:
            if name in self.same and name not in self.made:
                self._named(name, self.same[name])
        if not self._changed and outputs == self.old.outputs and self.nodes == self.old.nodes:
            return self.old
        return without_dead(self._graph(outputs))

    def _graph(self, outputs: list[str]) -> Graph:
        old = self.old
        return Graph(
            list(old.inputs), outputs, self.nodes, self.constants, self.specs, old.bounds, old.arithmetic
        )

    def _named(self, name: str, other: str) -> None:
        if other in self.constants:
            self.constants[name], self.specs[name] = self.constants[other], self.specs[other]
        else:
            self.emit("Identity", [other], name)


def swept(graph: Graph, visit: Visit, *ops: str) -> Graph:
    """Return the graph after *visit* was called for the nodes with an operator in *ops*. Without such
    nodes, return *graph* itself."""
    if graph.kinds.isdisjoint(ops):
        return graph
    return Sweep(graph).run(visit, frozenset(ops))


def alive(nodes: Sequence[Node], outputs: Iterable[str]) -> tuple[list[Node], set[str]]:
    """Return (nodes, names). *nodes*: the nodes on which *outputs* depend. *names*: *outputs*, and all values
    that these nodes read."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if any(name in needed for name in node.outputs if name):
            kept.append(node)
            needed.update(name for name in node.inputs if name)
    return kept[::-1], needed


def without_dead(graph: Graph) -> Graph:
    """Return the graph without nodes and constants on which no result depends."""
    nodes, needed = alive(graph.nodes, graph.outputs)
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    made = {name for node in nodes for name in node.outputs if name}
    specs = {name: graph.specs[name] for name in (*graph.inputs, *constants, *made)}
    return Graph(graph.inputs, graph.outputs, nodes, constants, specs, graph.bounds, graph.arithmetic)


def scalar(array: Array | None) -> Any:
    """Return the element of a constant with one element; None for other arrays."""
    return None if array is None or array.size != 1 else array.reshape(-1)[0]


def every_equal(array: Array) -> bool:
    """Return True if all elements are equal."""
    return bool(array.size and np.all(array == array.reshape(-1)[0]))
