"""Helpers for the rules in `plain`, which rewrite operators that the graph does not support."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph import Array, Node, Spec
from .sweep import Sweep

FLOATS = ("float32", "float16")
INTEGERS = ("int64", "int32")


@dataclasses.dataclass(frozen=True)
class Words:
    """A node that a rule replaces. ``visit`` is called for each emitted node, and may fold or rewrite it."""

    sweep: Sweep
    node: Node
    attributes: dict[str, Any]
    visit: Callable[[Node], Any]

    def spec(self, index: int) -> Spec:
        return self.sweep.specs[self.node.inputs[index]]

    def given(self, index: int) -> Array | None:
        """Return the array of an input if the input is a constant; None if it is omitted or computed."""
        name = self.node.input(index)
        return self.sweep.array(name) if name else None

    def of(self, name: str) -> Spec:
        return self.sweep.specs[name]

    def emit(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        name = output or self.sweep.fresh(f"{self.node.outputs[0]}/{op}")
        self.visit(Node(op, tuple(inputs), (name,), attributes, self.node.source))
        return name

    def constant(self, value: Any, dtype: str = "") -> str:
        array = np.asarray(value, dtype or None)
        return self.sweep.constant(array, f"{self.node.outputs[0]}/constant")

    def reshape(self, x: str, shape: Sequence[int], output: str = "") -> str:
        return self.emit("Reshape", [x, self.constant(list(shape), "int64")], output, allowzero=1)

    def number(self, value: float, like: str) -> str:
        """Add a constant scalar with the type of the value *like*. Return its name."""
        return self.constant(value, self.of(like).dtype)

    def part(self, x: str, axis: int, first: int, end: int, output: str = "", step: int = 1) -> str:
        lists = [self.constant([v], "int64") for v in (first, end, axis, step)]
        return self.emit("Slice", [x, *lists], output)

    def cast(self, x: str, to: str, output: str = "", **more: Any) -> str:
        return self.emit("Cast", [x], output, to=to, **more)

    def wide(self, x: str) -> str:
        """Convert a float value to float32 if it has another type. Return the result's name."""
        return x if self.of(x).dtype == "float32" else self.cast(x, "float32")

    def along(self, numbers: Any, axis: int, rank: int, dtype: str) -> str:
        """Add a constant of *rank* axes that has the elements *numbers* along *axis* and length 1 along all
        other axes. Return its name."""
        shape = [1] * rank
        shape[axis] = -1
        return self.constant(np.asarray(numbers).reshape(shape), dtype)

    def rows(self, function: str, x: str, axis: int, output: str = "") -> str:
        """Emit a node that applies a row function (`vkq.numerics.rows`) to float32 values along an axis. If
        the function is a reduction, the result lacks this axis."""
        return self.emit("rows", [x], output, function=function, axis=axis, count=1, epsilon=0.0)

    def result(self, name: str, index: int = 0) -> bool:
        """Make the value *name* result number *index* of the replaced node."""
        self.emit("Identity", [name], self.node.outputs[index])
        return True
