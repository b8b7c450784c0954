"""The state of reading a model, shared by the rules for its operators (`operators`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph.graph import Array, Node, unused


@dataclasses.dataclass
class Reading:
    """A model that is being read: its nodes and constants so far."""

    opset: int
    constants: dict[str, Array]
    taken: set[str]
    nodes: list[Node] = dataclasses.field(default_factory=list)

    def fresh(self, hint: str) -> str:
        """Return a name that no value of the model has."""
        return unused(hint, self.taken)

    def constant(self, value: Any, hint: str) -> str:
        """Add a constant and return its name."""
        name = self.fresh(hint)
        self.constants[name] = np.asarray(value)
        return name

    def emit(self, node: Node, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Emit a node in place of the model's *node*."""
        name = output or self.fresh(f"{node.outputs[0]}/{op}")
        self.nodes.append(Node(op, tuple(inputs), (name,), attributes, node.source))
        return name


Spelling = Callable[[Reading, Node], None]


def attributes_as_inputs(*names: str, integers: bool = True) -> Spelling:
    """Return a rule that turns attributes of an older opset into inputs, in order after the first input."""

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
