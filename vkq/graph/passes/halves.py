"""Changes quantized float16 graphs: the values between DequantizeLinear and QuantizeLinear become float32,
where possible.

Values computed only from dequantized values and constants become float32, so that float16 graphs get the
quantized operators of float32 graphs. A value that has become float32 is rounded to float16 only where an
operator combines it with values that have stayed float16. The results have the bits of the network's float32
form, whereas ONNX Runtime rounds to float16 after each operator."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..graph import Graph, Node
from .sweep import Sweep

HALF, SINGLE = "float16", "float32"
LINEAR = ("QuantizeLinear", "DequantizeLinear")


def widen_dequantized(graph: Graph) -> Graph:
    """Change the type of dequantized values, of their scales, and of all values that depend only on
    dequantized values and constants, from float16 to float32."""
    if not any(node.op in LINEAR and graph.specs[node.inputs[1]].dtype == HALF for node in graph.nodes):
        return graph
    return _Halves(graph).run()


class _Halves:
    """The state of the pass. ``wide`` maps a float16 value to the float32 value that replaces it."""

    def __init__(self, graph: Graph):
        self.sweep, self.wide = Sweep(graph), dict[str, str]()
        # Maps a float16 value to its float32 replacement rounded to float16.
        self.rounded: dict[str, str] = {}

    def run(self) -> Graph:
        self.sweep.walk(self._visit)
        outputs = list(self.sweep.old.outputs)
        for name in dict.fromkeys(outputs):
            if name in self.wide and name not in self.sweep.made:
                self.sweep.emit("Cast", [self.wide[name]], name, to=HALF)
        return self.sweep.finish(outputs)

    def _visit(self, sweep: Sweep, node: Node) -> bool:
        specs = sweep.old.specs
        if node.op == "foreign":
            return self._kept(node)
        if node.op in LINEAR:
            return self._linear(node)
        halves = [name for name in node.inputs if name and specs[name].dtype == HALF]
        if not halves or not any(name in self.wide for name in halves):
            return self._kept(node)
        if not all(self._can(name) for name in halves):
            return self._kept(node)
        inputs = tuple(self._widened(name) if name in halves else name for name in node.inputs)
        if node.op == "Cast" and node.attributes["to"] in (HALF, SINGLE):
            return self._passed(node, inputs[0])
        outputs = tuple(
            sweep.fresh(f"{name}/wide") if name and specs[name].dtype == HALF else name
            for name in node.outputs
        )
        self.wide |= {old: new for old, new in zip(node.outputs, outputs, strict=True) if old != new}
        sweep.keep(dataclasses.replace(node, inputs=inputs, outputs=outputs))
        return True

    def _passed(self, node: Node, wide: str) -> bool:
        """Remove a Cast of a float16 value. The readers of its result then read *wide*, the float32 value
        that replaces the float16 value."""
        if node.attributes["to"] == SINGLE:
            self.sweep.alias(node.outputs[0], wide)
        else:
            self.wide[node.outputs[0]] = wide
        return True

    def _linear(self, node: Node) -> bool:
        sweep, specs = self.sweep, self.sweep.old.specs
        if specs[node.inputs[1]].dtype != HALF:
            return self._kept(node)
        if node.op == "DequantizeLinear":
            if node.inputs[1] not in sweep.constants:
                return self._kept(node)
            if node.inputs[0] in sweep.constants:
                sweep.keep(node)  # keep the weight in float16, too: float16 layers read it
            self.wide[node.outputs[0]] = sweep.fresh(f"{node.outputs[0]}/wide")
            result = self.wide[node.outputs[0]]
        else:
            result = node.outputs[0]
        inputs = tuple(
            self._widened(name) if name and specs[name].dtype == HALF else name for name in node.inputs
        )
        sweep.keep(dataclasses.replace(node, inputs=inputs, outputs=(result,)))
        return True

    def _can(self, name: str) -> bool:
        return name in self.wide or name in self.sweep.constants

    def _widened(self, name: str) -> str:
        if name in self.wide:
            return self.wide[name]
        array = self.sweep.array(name)
        if array is not None:
            return self.sweep.constant(array.astype(np.float32), f"{name}/wide")
        return self.sweep.emit("Cast", [name], to=SINGLE)

    def _kept(self, node: Node) -> bool:
        """Keep a node. If one of its inputs has become float32, round this input to float16."""
        inputs = tuple(self._rounded(name) if name in self.wide else name for name in node.inputs)
        self.sweep.keep(node if inputs == node.inputs else dataclasses.replace(node, inputs=inputs))
        return True

    def _rounded(self, name: str) -> str:
        if name in self.sweep.made:  # *name* is a dequantized weight, which exists in float16, too
            return name
        if name not in self.rounded:
            self.rounded[name] = self.sweep.emit("Cast", [self.wide[name]], to=HALF)
        return self.rounded[name]
