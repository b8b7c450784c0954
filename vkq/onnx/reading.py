"""A model that is being read: what the rules for its operators (`operators`) share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph.graph import Array, Node, unused


@dataclasses.dataclass
class Reading:
    """What is being read: nodes and constants so far."""

    opset: int
    constants: dict[str, Array]
    taken: set[str]
    nodes: list[Node] = dataclasses.field(default_factory=list)

    def fresh(self, hint: str) -> str:
        """A name that no value of the model has."""
        return unused(hint, self.taken)

    def constant(self, value: Any, hint: str) -> str:
        """The name of a new constant."""
        name = self.fresh(hint)
        self.constants[name] = np.asarray(value)
        return name

    def emit(self, node: Node, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """A node in place of the model's *node*."""
        name = output or self.fresh(f"{node.outputs[0]}/{op}")
        self.nodes.append(Node(op, tuple(inputs), (name,), attributes, node.source))
        return name


Spelling = Callable[[Reading, Node], None]


def attributes_as_inputs(*names: str, integers: bool = True) -> Spelling:
    """Attributes of an older opset that became inputs, in order after the first input."""

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
