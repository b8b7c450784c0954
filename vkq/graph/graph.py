"""A graph of operators: nodes in order, constants, and the spec of every value.

There are two kinds of operators (`vkq.graph.operators.TABLE`). ONNX's operators in their newest version
(Conv, Relu, Reshape) accept any type. vkq's operators (conv2d, add, lookup) compute with 8-bit values and
have quantization parameters as attributes. A model's graph starts with ONNX's operators; passes replace
them by vkq's. All shapes are known: a model with symbolic sizes becomes one graph for each set of input
shapes."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, ModelError

Array = npt.NDArray[Any]
# Maximum bytes of one value. A larger value means a broken or malicious model.
LARGEST_BYTES = 1 << 36


@dataclasses.dataclass(frozen=True)
class Spec:
    """The dtype (NumPy's name) and the shape of a value."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: Array) -> Spec:
        return cls(array.dtype.name, tuple(array.shape))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def check(self, what: str) -> Spec:
        """Return this spec. Raise an error if a value with this spec would have a negative dim or more than
        LARGEST_BYTES. *what*: the name of the value in the error's message."""
        if min(self.shape, default=0) < 0 or self.nbytes > LARGEST_BYTES:
            raise ModelError(
                f"{what} would be {self}; its dims must be 0 or more, its size {LARGEST_BYTES} bytes at most"
            )
        return self

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """An operator with its inputs and outputs, which are names of values ("" if omitted). ``source`` is the
    name of the node in the model."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: str = ""

    def input(self, index: int) -> str:
        """Return the name of an input, or "" if the input is omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @property
    def label(self) -> str:
        """The operator with the operators of its epilogue, for example ``conv2d+add``."""
        return "+".join([self.op, *(step.op for step in self.attributes.get("after", ()))])

    def __str__(self) -> str:
        op = self.attributes["op"] if self.op == "foreign" else self.op
        return f"{op} {self.source or self.outputs[0]!r}"


@dataclasses.dataclass
class Graph:
    """Nodes in topological order.

    - specs: the spec of each input, constant and result of a node, by name
    - bounds: the smallest and largest allowed value of integer inputs that have bounds, by name
    - arithmetic: the inputs whose bounds only keep arithmetic within int32; other bounds keep indices in
      range"""

    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    constants: dict[str, Array]
    specs: dict[str, Spec]
    bounds: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    arithmetic: frozenset[str] = frozenset()

    @functools.cached_property
    def kinds(self) -> frozenset[str]:
        """The operators in the graph. A pass that changes none of them returns at once."""
        return frozenset(node.op for node in self.nodes)

    def uses(self) -> dict[str, int]:
        """Return the number of uses of each value. Each input of a node counts as one use, and so does each
        result of the graph."""
        count: dict[str, int] = dict.fromkeys(self.outputs, 0)
        for name in (*self.outputs, *(name for node in self.nodes for name in node.inputs if name)):
            count[name] = count.get(name, 0) + 1
        return count

    def check_bounds(self, inputs: Mapping[str, Any]) -> None:
        """Raise ArgumentError if an integer input has an element outside its bounds."""
        for name in self._outside(self.bounds, inputs):
            given, (low, high) = inputs[name], self.bounds[name]
            raise ArgumentError(
                f"input {name!r} holds {given.min()} to {given.max()}; this model takes {low} to {high}."
                " Other values would be indices out of range, or overflow int32. With"
                f" constant_inputs=[{name!r}] the host computes with this input in int64"
            )

    def overflowing(self, inputs: Mapping[str, Any]) -> set[str]:
        """Return the names of the arrays with elements for which the graph's arithmetic could overflow
        int32."""
        return set(self._outside(self.arithmetic, inputs))

    def _outside(self, names: Iterable[str], inputs: Mapping[str, Any]) -> Iterator[str]:
        """Yield those of *names* whose arrays have an element outside the input's bounds."""
        for name in names:
            given, (low, high) = inputs.get(name), self.bounds[name]
            if isinstance(given, np.ndarray) and given.size and not low <= given.min() <= given.max() <= high:
                yield name

    def verify(self) -> None:
        """Raise ModelError if a value is computed twice, or if a node reads a value that is unknown or
        computed later."""
        known = {*self.inputs, *self.constants}
        for node in self.nodes:
            for name in node.inputs:
                if name and name not in known:
                    raise ModelError(f"{node}: its input {name!r} is not made by an earlier node")
            for name in filter(None, node.outputs):
                if name in known:
                    raise ModelError(
                        f"{node}: its output {name!r} exists already; each value must be made once"
                    )
                known.add(name)
        for name in self.outputs:
            if name not in known:
                raise ModelError(f"no node makes the result {name!r}")
        missing = sorted(name for name in known if name not in self.specs)
        if missing:
            raise ModelError(f"the values {missing[:5]} have no spec")


def in_order(nodes: Sequence[Node], known: Iterable[str]) -> list[Node]:
    """Return the nodes in topological order. Raise an error for a cycle, and for an input that no node makes
    and *known* does not contain."""
    made = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    have = set(known)
    waiting = {
        i: {made[n] for n in node.inputs if n and n in made and made[n] != i} for i, node in enumerate(nodes)
    }
    for node in nodes:
        for name in node.inputs:
            if name and name not in have and name not in made:
                raise ModelError(
                    f"{node}: its input {name!r} is neither an input, nor a constant, nor made by a node"
                )
            if name and name in node.outputs:
                raise ModelError(f"{node}: reads its own output {name!r}")
    readers: dict[int, list[int]] = {}
    for i, needs in waiting.items():
        for need in needs:
            readers.setdefault(need, []).append(i)
    # A heap of the indices of nodes whose inputs are all computed. Taking the smallest index keeps the
    # model's order where possible.
    ready = [i for i, needs in waiting.items() if not needs]
    order: list[Node] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(nodes[i])
        for reader in readers.get(i, ()):
            waiting[reader].discard(i)
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = next(nodes[i] for i, needs in waiting.items() if needs)
        raise ModelError(f"{stuck}: is part of a cycle; a graph must have none")
    return order


def unused(hint: str, taken: set[str]) -> str:
    """Return an unused name and add it to *taken*. The name is *hint*, or *hint* with a number if it is
    taken."""
    name = hint
    if hint in taken:  # a binary search for the number, because thousands of names may have the same hint
        last, free = 0, 1
        while f"{hint}_{free}" in taken:
            last, free = free, 2 * free
        while free - last > 1:
            middle = (last + free) // 2
            last, free = (middle, free) if f"{hint}_{middle}" in taken else (last, middle)
        name = f"{hint}_{free}"
    taken.add(name)
    return name
