"""Replaces the model's types by types that a device stores: bool becomes uint8, and int64 becomes int32.

Integers known only at run time (ids, positions, lengths, masks) become int32 if their range proves that all
values fit. The ranges of results are computed from the ranges of the inputs, and the inputs are checked at
run time (``Graph.bounds``). Arithmetic that could overflow int32 stays int64, between Casts that state the
reason; a device refuses these Casts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..graph import Graph, Node, Spec
from ..operators import elementwise, movement
from ..operators.operator import axis_of
from .constants import HELD
from .ranges import INT32, Range, fits, result_range
from .sweep import Sweep

# Candidate ranges [-half, half) of integer inputs, the widest first. The pass chooses the first candidate
# for which no arithmetic can overflow int32.
WIDEST = (1 << 31, 1 << 24, 1 << 16, 1 << 15)
CARRIED = {"Cast", "Identity", *movement.OPERATORS} - {"Concat", "Pad", "Split"}


def hold_types(graph: Graph) -> Graph:
    """Replace all types by types that a device stores. Results of operators unknown to vkq already have
    types that a device stores."""
    made = (name for node in graph.nodes if node.op != "foreign" for name in node.outputs if name)
    found = {graph.specs[name].dtype for name in (*graph.inputs, *made)}
    replaces = not found.isdisjoint((*HELD, "int64"))
    if not replaces and all(graph.specs[name].dtype != "int32" for name in graph.inputs):
        return graph
    for half in WIDEST:
        types = _Types(graph, half)
        held = types.sweep.run(types.visit)
        if not types.wide or half == WIDEST[-1]:
            break
    if types.wide and not replaces:
        return graph  # int32 arithmetic may wrap, so the ranges of its results are unknown
    bounds = {name: types.bounds[name] for name in graph.inputs if name in types.bounds}
    any_int32 = [x for x, bound in bounds.items() if bound == INT32 and graph.specs[x].dtype == "int32"]
    for name in any_int32:  # every int32 value is allowed, so nothing has to be checked
        del bounds[name]
    return dataclasses.replace(held, bounds=bounds)


class _Types:
    """Runs the pass under the assumption that all integer inputs are in [-half, half). ``wide`` collects the
    nodes whose results could overflow int32."""

    def __init__(self, graph: Graph, half: int):
        self.sweep = Sweep(graph)
        self.wide: list[Node] = []
        self.bounds: dict[str, Range] = {}  # allowed ranges of the graph's inputs
        self.ranges: dict[str, Range] = {}
        self.origin: dict[str, str] = {}  # maps a value to the graph input whose elements it contains
        for name in graph.inputs:
            spec = graph.specs[name]
            if spec.dtype in ("int64", "int32"):
                self.bounds[name] = self.ranges[name] = (-half, half - 1)
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
        if node.op == "Concat" and sweep.old.specs[node.outputs[0]].dtype in HELD:
            self.sweep.keep(dataclasses.replace(node, inputs=tuple(map(self._byte, node.inputs))))
            return True
        whole = self._integer_operands(node)
        if node.op == "Cast" and node.attributes["to"] == "int64":
            return self._cast(node, whole)
        if not any(x in self.ranges for x in whole):
            return False
        ranges = [self._range(name) for name in whole]
        found = None if None in ranges else result_range(node, [r for r in ranges if r], sweep.specs)
        gives = sweep.old.specs[node.outputs[0]].dtype
        if gives == "int64" and (found is None or not fits(found)):
            return self._stays_wide(node, found)
        if any(r is None for r in ranges):  # an operand stays int64
            return self._stays_wide(node, None)
        self._keep(node, whole)
        if gives in ("int64", "int32") and found is not None:
            self.ranges |= {name: found for name in node.outputs if name}
        self._note(node)
        return True

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
        return self.ranges.get(name)

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
        integers always fit. Floats may not fit: their Cast stays, with the reason why a device refuses it."""
        name, dtype = node.inputs[0], self.sweep.specs[node.inputs[0]].dtype
        limits = {
            "bool": (0, 1),
            "uint8": (0, 255),
            "int8": (-128, 127),
            "int16": (-(1 << 15), (1 << 15) - 1),
        }
        found = self._range(name) if whole else limits.get(dtype)
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
        self.wide.append(node)
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
