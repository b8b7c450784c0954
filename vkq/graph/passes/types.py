"""Replaces the model's types by types that a device stores: bool becomes uint8, and int64 becomes int32.

Integers known only at run time (ids, positions, lengths, masks) become int32 if their range proves that all
values fit. The ranges of results are computed from the ranges of the inputs, and the inputs are checked at
run time (``Graph.bounds``). Arithmetic that could overflow int32 stays int64, between Casts that state the
reason; a device refuses these Casts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ..graph import Graph, Node, Spec
from ..operators import elementwise, movement
from ..operators.operator import axis_of
from .constants import HELD
from .ranges import INT32, Range, fits, result_range
from .spans import whole_range
from .sweep import Sweep

# Candidate ranges [-half, half) of integer inputs, the widest first. For each input, the pass chooses the
# first candidate for which no arithmetic that reads the input can overflow int32. The last one is for masks:
# a product of a mask and its sums over up to 2^15 elements (positions) stays in int32.
WIDEST = (1 << 31, 1 << 24, 1 << 16, 1 << 15, 1 << 8)
# Types whose elements are always in a range that int32 holds.
SHORT: dict[str, Range] = {
    "bool": (0, 1),
    "uint8": (0, 255),
    "int8": (-128, 127),
    "int16": (-(1 << 15), (1 << 15) - 1),
}
CARRIED = {"Cast", "Identity", *movement.OPERATORS} - {"Concat", "Pad", "Split"}


def hold_types(graph: Graph) -> Graph:
    """Replace all types by types that a device stores. Results of operators unknown to vkq already have
    types that a device stores."""
    made = (name for node in graph.nodes if node.op != "foreign" for name in node.outputs if name)
    found = {graph.specs[name].dtype for name in (*graph.inputs, *made)}
    replaces = not found.isdisjoint((*HELD, "int64"))
    if not replaces and all(graph.specs[name].dtype != "int32" for name in graph.inputs):
        return graph
    types, held = _narrowed(graph)
    if types.wide and not replaces:
        return graph  # int32 arithmetic may wrap, so the ranges of its results are unknown
    bounds = {name: types.bounds[name] for name in graph.inputs if name in types.bounds}
    any_int32 = [x for x, bound in bounds.items() if bound == INT32 and graph.specs[x].dtype == "int32"]
    for name in any_int32:  # every int32 value is allowed, so nothing has to be checked
        del bounds[name]
    own = frozenset(name for name, bound in bounds.items() if bound == types.assumed[name] != INT32)
    return dataclasses.replace(held, bounds=bounds, arithmetic=own)


def _narrowed(graph: Graph) -> tuple[_Types, Graph]:
    """Run the pass with narrower and narrower ranges of the inputs that wide nodes read. If a node is wide
    even with the narrowest ranges, it narrows no input."""
    steps, hopeless = dict.fromkeys(graph.inputs, 0), set[str]()
    while True:
        types = _Types(graph, {name: WIDEST[step] for name, step in steps.items()})
        held = types.sweep.run(types.visit)
        wide = {name: inputs for name, inputs in types.wide.items() if inputs and name not in hopeless}
        if not wide:
            return types, held
        blamed = frozenset[str]().union(*wide.values())
        narrower = {name: min(step + (name in blamed), len(WIDEST) - 1) for name, step in steps.items()}
        if narrower == steps:
            steps, hopeless = dict.fromkeys(steps, 0), hopeless | wide.keys()
        else:
            steps = narrower


class _Types:
    """Runs the pass under the assumption that each integer input is in [-half, half). ``wide`` has the nodes
    whose results could overflow int32: it maps a node's first result to the graph inputs that decide its
    range."""

    def __init__(self, graph: Graph, halves: Mapping[str, int]):
        self.sweep = Sweep(graph)
        self.wide: dict[str, frozenset[str]] = {}
        self.assumed: dict[str, Range] = {}  # the assumed ranges of the graph's inputs
        self.bounds: dict[str, Range] = {}  # allowed ranges of the graph's inputs
        self.ranges: dict[str, Range] = {}
        self.origin: dict[str, str] = {}  # maps a value to the graph input whose elements it contains
        self.sources: dict[str, frozenset[str]] = {}  # maps a value to the graph inputs that decide its range
        for name in graph.inputs:
            spec, half = graph.specs[name], halves[name]
            if spec.dtype in ("int64", "int32"):
                self.sources[name] = frozenset((name,))
                self.assumed[name] = self.bounds[name] = self.ranges[name] = (-half, half - 1)
                self.origin[name] = name
            to = "int32" if spec.dtype == "int64" else HELD.get(spec.dtype, spec.dtype)
            self.sweep.hold(name, Spec(to, spec.shape))

    def visit(self, sweep: Sweep, node: Node) -> bool:
        if node.op == "foreign":
            return False
        if "range" in node.attributes:  # the attribute states the range of the last result, which is int32
            self.sweep.keep(node)
            if node.op == "append_cache":
                # the input is a cache of packed bytes, so every int32 value is allowed
                self.bounds.pop(node.input(2), None)
            self.ranges[node.outputs[-1]] = node.attributes["range"]
            return True
        if node.op in ("Concat", "Equal") and sweep.old.specs[node.inputs[0]].dtype in HELD:
            self.sweep.keep(dataclasses.replace(node, inputs=tuple(map(self._byte, node.inputs))))
            return True
        whole = self._integer_operands(node)
        self._trace(node, whole)
        if node.op == "Cast" and node.attributes["to"] == "int64":
            return self._cast(node, whole)
        ranges = [self._range(name) for name in whole]
        gives = sweep.old.specs[node.outputs[0]].dtype
        if node.op == "Cast" and gives == "int32" and not whole:
            self.ranges[node.outputs[0]] = SHORT.get(sweep.old.specs[node.inputs[0]].dtype, INT32)
        # A node whose integer operands are all constants is kept in int32, too: Where has a condition.
        if not ranges or (None in ranges and not any(x in self.ranges for x in whole)):
            return False
        found = None if None in ranges else result_range(node, [r for r in ranges if r], sweep.specs)
        if gives == "int64" and (found is None or not fits(found)):
            return self._stays_wide(node, found)
        if any(r is None for r in ranges):  # an operand stays int64
            return self._stays_wide(node, None)
        self._keep(node, whole)
        if gives == "int32" and not (found and fits(found)):
            found = INT32  # the model's own int32 arithmetic wraps
        if gives in ("int64", "int32") and found is not None:
            self.ranges |= {name: found for name in node.outputs if name}
        self._note(node)
        return True

    def _trace(self, node: Node, whole: Sequence[str]) -> None:
        """Record which graph inputs decide the ranges of a node's results."""
        found = frozenset[str]().union(*(self.sources.get(name, ()) for name in whole))
        self.sources |= {name: found for name in node.outputs if name and found}

    def _byte(self, name: str) -> str:
        """Convert a Boolean value to uint8, by a Cast or as a new constant. Return the result's name. Other
        values are not converted."""
        if self.sweep.specs[name].dtype != "bool":
            return name
        array = self.sweep.array(name)
        if array is None:
            return self.sweep.emit("Cast", [name], to=HELD["bool"])
        return self.sweep.constant(array.astype(HELD["bool"]), f"{name}/bytes")

    def _integer_operands(self, node: Node) -> list[str]:
        """Return the int32 and int64 inputs that a node computes with or moves. Its other integer inputs,
        such as axes, are parameters."""
        every = node.op in elementwise.OPERATORS or node.op in ("Concat", "Gather", "scatter", "place")
        names = node.inputs[1:] if node.op == "Where" else node.inputs if every else node.inputs[:1]
        kinds = ("int64", "int32")
        return [name for name in names if name and self.sweep.old.specs[name].dtype in kinds]

    def _range(self, name: str) -> Range | None:
        array = self.sweep.array(name)
        if array is not None:
            return (int(array.min()), int(array.max())) if array.size else (0, 0)
        return self.ranges.get(name, INT32 if self.sweep.old.specs[name].dtype == "int32" else None)

    def _keep(self, node: Node, whole: Sequence[str]) -> None:
        """Keep a node, and let it compute in int32. *whole*: the integer inputs that the node computes
        with."""
        names = {name: self._held(name) for name in whole}
        inputs = tuple(names.get(name, name) for name in node.inputs)
        self.sweep.keep(dataclasses.replace(node, inputs=inputs))

    def _held(self, name: str) -> str:
        array = self.sweep.array(name)
        if array is None or array.dtype != np.int64 or not fits(self._range(name) or INT32):
            return name
        return self.sweep.constant(array.astype(np.int32), f"{name}/int32")

    def _cast(self, node: Node, whole: Sequence[str]) -> bool:
        """Replace a Cast to int64 by a Cast to int32 if the values fit into int32. Boolean values and shorter
        integers always fit. If floats may not fit, the Cast stays, with the reason why a device refuses
        it."""
        name, dtype = node.inputs[0], self.sweep.specs[node.inputs[0]].dtype
        found = self._range(name) if whole else SHORT.get(dtype)
        if found is None and not whole and name not in self.sweep.constants:
            found = whole_range(self.sweep, name, self.ranges)
        if found is None and (whole or name in self.sweep.constants):
            return False
        if found is None:
            why = f"int64 numbers made of {dtype} may exceed int32, and a device has no int64: cast to int32"
            self.sweep.keep(dataclasses.replace(node, attributes={**node.attributes, "why": why}))
            return True
        self.sweep.keep(dataclasses.replace(node, attributes={**node.attributes, "to": "int32"}))
        self.ranges[node.outputs[0]] = found
        self._note(node)
        return True

    def _stays_wide(self, node: Node, found: Range | None) -> bool:
        """Keep a node in int64. Cast its int32 inputs to int64; these Casts state why a device refuses them.
        *found*: the range of the node's results, or None if it is unknown."""
        self.wide[node.outputs[0]] = self.sources.get(node.outputs[0], frozenset())
        said = f"from {found[0]} to {found[1]}" if found else "of an unknown range"
        why = f"{node}: its results, {said}, may exceed int32, and a device has no int64"
        inputs = tuple(
            self.sweep.emit("Cast", [name], source=node.source, to="int64", why=why)
            if name in self.ranges
            else name
            for name in node.inputs
        )
        self.sweep.keep(dataclasses.replace(node, inputs=inputs))
        return True

    def _note(self, node: Node) -> None:
        """If *node* moves or converts elements of a graph input, record that its result contains elements of
        this input. If *node* uses elements of a graph input as indices into an axis, narrow the bounds of the
        graph input to the indices of that axis."""
        first = node.inputs[0]
        if node.op in CARRIED and first in self.origin and node.outputs[0] in self.ranges:
            self.origin[node.outputs[0]] = self.origin[first]
        if "within" in node.attributes and first in self.origin:
            (low, high), (least, most) = self.bounds[self.origin[first]], node.attributes["within"]
            self.bounds[self.origin[first]] = max(low, least), min(high, most)
        if node.op == "Gather" and node.inputs[1] in self.origin:
            shape, source = self.sweep.specs[first].shape, self.origin[node.inputs[1]]
            size = shape[axis_of(node, len(shape), 0)]
            low, high = self.bounds[source]
            self.bounds[source] = (max(low, -size), min(high, size - 1))
