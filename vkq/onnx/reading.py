"""The state of reading a model. The rules in `vkq.onnx.operators` add nodes and constants to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph.graph import Array, Node, unused


@dataclasses.dataclass
class Reading:
    """The nodes and constants that have been read from a model. ``taken``: all names in use."""

    opset: int
    constants: dict[str, Array]
    taken: set[str]
    nodes: list[Node] = dataclasses.field(default_factory=list)

    def fresh(self, hint: str) -> str:
        """Return an unused name that begins with *hint*."""
        return unused(hint, self.taken)

    def constant(self, value: Any, hint: str) -> str:
        """Add a constant and return its name."""
        name = self.fresh(hint)
        self.constants[name] = np.asarray(value)
        return name

    def emit(self, node: Node, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Emit one of the nodes that replace *node*. Return the name of its result: *output*, or a new name
        if *output* is ""."""
        name = output or self.fresh(f"{node.outputs[0]}/{op}")
        self.nodes.append(Node(op, tuple(inputs), (name,), attributes, node.source))
        return name


Spelling = Callable[[Reading, Node], None]


def attributes_as_inputs(*names: str, integers: bool = True) -> Spelling:
    """Return a rewrite rule that replaces the attributes *names* of an older opset by inputs of the node.
    Their values become constants: int64 if *integers*, else float32."""

    def rule(reading: Reading, node: Node) -> None:
        a = dict(node.attributes)
        if not any(name in a for name in names):
            reading.nodes.append(node)
            return
        inputs = [node.inputs[0]]
        for name in names:
            value = a.pop(name, None)
            dtype = np.int64 if integers else np.float32
            array = None if value is None else np.asarray(value, dtype)
            inputs.append("" if array is None else reading.constant(array, f"{node.outputs[0]}/{name}"))
        reading.nodes.append(Node(node.op, tuple(inputs), node.outputs, a, node.source))

    return rule
