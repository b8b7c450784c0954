"""The node that a rule rewrites once its input shapes are known, and the nodes that replace it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.graph import Array, Node, Spec
from ..graph.operators.operator import OpenShape
from .reading import Reading
from .tensors import NEWEST


@dataclasses.dataclass
class Rewriting:
    """A node that a rule rewrites, and the nodes that the rule emits. ``specs`` has None for omitted
    inputs, ``arrays`` has None for inputs that are not constants. int8_cache: True if past and present are
    int8 caches (`adapted`)."""

    node: Node
    specs: Sequence[Spec | None]
    arrays: Sequence[Array | None]
    int8_cache: bool = False

    def __post_init__(self) -> None:
        names = {*self.node.inputs, *self.node.outputs}
        self.reading = Reading(NEWEST, {}, names)

    @property
    def given(self) -> dict[int, Spec]:
        """The specs of the inputs that are not omitted, by index."""
        return {i: spec for i, spec in enumerate(self.specs) if spec is not None}

    def spec(self, i: int) -> Spec | None:
        return self.specs[i] if i < len(self.specs) else None

    def name(self, i: int) -> str:
        """Return the name of input *i*; "" if the input is omitted."""
        return self.node.input(i)

    def result(self, i: int) -> str:
        return self.node.outputs[i] if i < len(self.node.outputs) else ""

    def number(self, i: int) -> int:
        """Return the integer value of a one-element input that decides a shape. Raise OpenShape if the
        input is not a constant."""
        array = self.arrays[i]
        if array is None:
            why = f"{self.node}: input {i} decides the shapes of its results; it is computed from the inputs"
            raise OpenShape(why, self.name(i))
        return int(array.reshape(-1)[0])

    def emit(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        return self.reading.emit(self.node, op, inputs, output, **attributes)

    def constant(self, value: Any, dtype: str = "float32") -> str:
        return self.reading.constant(np.asarray(value, dtype), f"{self.node.outputs[0]}/number")

    def reshape(self, x: str, shape: Sequence[int], output: str = "") -> str:
        """Emit a Reshape. In *shape*, 0 keeps the size of x, and -1 is inferred."""
        return self.emit("Reshape", [x, self.constant(shape, "int64")], output)

    def transpose(self, x: str, *perm: int) -> str:
        return self.emit("Transpose", [x], perm=perm)

    def part(self, x: str, axis: int, first: int, end: int) -> str:
        """Emit a Slice of x from *first* to *end* along an axis. Return the result's name."""
        return self.emit("Slice", [x, *(self.constant([n], "int64") for n in (first, end, axis))])

    def parts(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        """Emit Slices that divide x along an axis into consecutive parts of these *sizes*. Return the names
        of the parts."""
        ends = np.cumsum([0, *sizes])
        return [self.part(x, axis, int(a), int(b)) for a, b in itertools.pairwise(ends)]

    def cast(self, x: str, to: str, output: str = "") -> str:
        return self.emit("Cast", [x], output, to=to)
