"""Turns element-wise nodes into links of a chain. A link is a step of the chain's kernel
(`vkq.kernels.chain`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ...kernels.chain import Chain, Link, named
from ...numerics.described import CASTS, LOGIC, TESTS, WHOLE_TESTS, takes
from ..graph import Graph, Node

BYTES = ("int8", "uint8")


@dataclasses.dataclass(frozen=True)
class Element:
    """An element-wise node that may join a chain. ``dtype`` is the type of its arithmetic, ``operands`` and
    ``result`` are the types of its operands and its result."""

    node: Node
    dtype: str
    operands: tuple[str, ...]
    result: str


class Writer:
    """Collects the links of a chain. The values of the chain are its inputs, its constants and the results of
    its links; the method `chain` numbers them in this order."""

    def __init__(self, graph: Graph, inputs: Sequence[str], types: Sequence[str]):
        self.graph, self.inputs = graph, tuple(types)
        self.constants: list[tuple[str, float]] = []
        self.links: list[Link] = []
        # Maps a name to ((kind, index), type); the kind is "input", "constant" or "link".
        self.values: dict[str, tuple[tuple[str, int], str]] = {
            name: (("input", i), dtype) for i, (name, dtype) in enumerate(zip(inputs, types, strict=True))
        }

    def add(self, element: Element) -> None:
        node = element.node
        names = [name for name in node.inputs if name]
        operands = [self._operand(name, dtype) for name, dtype in zip(names, element.operands, strict=True)]
        attributes = dict(node.attributes)
        if node.op == "Clip":
            bounds = zip(("min", "max"), (node.input(1), node.input(2)), strict=True)
            attributes["bounds"] = tuple(which for which, name in bounds if name)
        # Kernels store bytes from float32 values.
        held = "float32" if element.result in BYTES else element.result
        made = self._link(node.op, operands, element.dtype, held, attributes)
        self.values[node.outputs[0]] = made, element.result

    def _operand(self, name: str, dtype: str) -> tuple[str, int]:
        if name in self.graph.constants and name not in self.values:
            value = self.graph.constants[name].reshape(-1)[0]
            self.constants.append((dtype, float(value) if dtype.startswith("float") else int(value)))
            return "constant", len(self.constants) - 1
        number, own = self.values[name]
        held = "float32" if own in BYTES else own
        return number if held == dtype else self._link("Cast", [number], held, dtype, {"to": dtype})

    def _link(
        self,
        op: str,
        operands: Sequence[tuple[str, int]],
        dtype: str,
        result: str,
        attributes: dict[str, object],
    ) -> tuple[str, int]:
        self.links.append(Link(op, tuple(operands), dtype, result, named(attributes)))  # type: ignore[arg-type]
        return "link", len(self.links) - 1

    def result(self, name: str) -> tuple[tuple[str, int], str]:
        """Return (number, dtype). number: the (kind, index) of a result, as in ``values``. dtype: the type in
        which the result is stored: uint8 for Boolean results."""
        number, dtype = self.values[name]
        if dtype == "bool":
            return self._link("Cast", [number], "bool", "float32", {"to": "float32"}), "uint8"
        return number, dtype

    def chain(self, results: Sequence[tuple[str, int]]) -> Chain:
        first = {"input": 0, "constant": len(self.inputs)}
        first["link"] = first["constant"] + len(self.constants)

        def place(number: tuple[str, int]) -> int:
            return first[number[0]] + number[1]

        links = [
            dataclasses.replace(link, operands=tuple(place(o) for o in link.operands))  # type: ignore[arg-type]
            for link in self.links
        ]
        return Chain(self.inputs, tuple(self.constants), tuple(links), tuple(place(r) for r in results))


def element_of(graph: Graph, node: Node) -> Element | None:
    """Return a node as an element of a chain; None if the chain kernel cannot compute it."""
    names = [name for name in node.inputs if name]
    if len(node.outputs) != 1 or not names or node.op == "Identity" or "why" in node.attributes:
        return None
    types = [graph.specs[name].dtype for name in names]
    result = graph.specs[node.outputs[0]].dtype
    if math.prod(graph.specs[node.outputs[0]].shape) == 0:
        return None
    if node.op == "Cast":
        dtype = "float32" if types[0] in BYTES else types[0]
        known = takes("Cast", dtype) and result in CASTS
        return Element(node, dtype, (dtype,), result) if known else None
    if node.op == "Where":
        flags = types[0] in ("bool", *BYTES) and types[1] == types[2] and takes("Where", types[1])
        return Element(node, types[1], ("bool", types[1], types[1]), types[1]) if flags else None
    if node.op in LOGIC and node.op not in TESTS:
        held = all(dtype in ("bool", *BYTES) for dtype in types)
        return Element(node, "bool", ("bool",) * len(types), "bool") if held else None
    if len(set(types)) != 1 or not takes(node.op, types[0]):
        return None
    test = node.op in (TESTS if types[0].startswith("float") else WHOLE_TESTS) or types[0] == "bool"
    return Element(node, types[0], tuple(types), "bool" if test else types[0])
