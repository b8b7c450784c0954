"""Checks that axis 0 of a model's result is the batch, as `InferenceSession.map` requires.

The check compares two graphs of the model: one for the given batch, and one for a batch with one element
more. The batch axis of a value is the only axis that is longer by one in the second graph. No node before
the value may reorder or mix the elements along this axis.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, VkqError
from ..graph.graph import Array, Graph, Node
from ..graph.operators.movement import margins
from ..graph.operators.operator import OpenShape, axis_of
from .inputs import alike, checked_feed
from .reader import Model, fixed

Rows = Mapping[str, list[Array]]
Shapes = Mapping[str, tuple[int, ...]]
MIXED = -1
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
# Operators that may move the batch to another axis.
WHEREVER = ("MatMul", "Gemm", "Transpose", "Slice", "Pad", "Concat")
ALONG = {  # operators that mix or reorder elements along an axis; values: the default of ``axis``
    "Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "TopK": -1, "Gather": 0, "GatherElements": 0,
}  # fmt: skip
# Recurrent operators: axis 0 of their input is time, and axis 1 is the batch.
IN_TIME = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
NEVER = (
    "CumSum", "NonZero", "Unique", "ReverseSequence", "Compress", "GatherND", "ScatterND", "ScatterElements",
    "Einsum",
)  # fmt: skip


class BatchCheck:
    """Callable that raises ArgumentError if axis 0 of a result is not the batch; call it before the batch
    runs. It checks each set of input shapes once, whatever the batch size."""

    def __init__(self, model: Model, output: str, constant: Container[str]):
        self.model, self.output, self.constant = model, output, constant
        self._known: set[Any] = set()

    def __call__(self, rows: Rows) -> Rows:
        """Check the arrays of a batch, and return them unchanged."""
        shapes = {name: (len(x), *x[0].shape) for name, x in rows.items()}
        key = tuple((name, shape[1:]) for name, shape in shapes.items())
        if key not in self._known:
            given = {name: np.stack(alike(name, x)) for name, x in rows.items() if name in self.constant}
            whole = {name: np.broadcast_to(x[0], shapes[name]) for name, x in rows.items()} | given
            checked_feed(self.model.inputs, whole, self.constant)
            self._check(shapes, given)
            self._known.add(key)
        return rows

    def _check(self, shapes: Shapes, given: Mapping[str, Array]) -> None:
        count = next(iter(shapes.values()))[0]
        try:
            one = _graph(self.model, shapes, given, 0)
        except OpenShape as error:
            raise ArgumentError(
                f"map: the shape of output {self.output!r} is known only at run time ({error}); its axis 0"
                " must be the batch, with one row for each input: use run"
            ) from error
        shape = one.specs[self.output].shape
        why = f"has shape {list(shape)} for a batch of {count}"
        if shape[:1] == (count,):
            if count == 1 and all(a.shape[:1] == (1,) for a in self.model.inputs):
                return  # every input has a fixed batch size of 1
            try:
                more = _graph(self.model, shapes, given, 1)
            except (VkqError, ValueError):
                return  # the model accepts this batch size only
            if _axes(one, more, count).get(self.output, 0) == 0:
                return
            why += f", {list(more.specs[self.output].shape)} for {count + 1}, and may mix or exchange inputs"
        raise ArgumentError(
            f"map: output {self.output!r} {why}; its axis 0 must be the batch, with one row for each input:"
            " use run"
        )


def _graph(model: Model, shapes: Shapes, given: Mapping[str, Array], more: int) -> Graph:
    """Return the model's graph for a batch with *more* additional elements. *given*: the arrays of the inputs
    whose values the graph depends on."""
    known = {name: np.concatenate([x, *[x[:1]] * more]) for name, x in given.items()}
    return fixed(model, known).at({name: (shape[0] + more, *shape[1:]) for name, shape in shapes.items()})


def _axes(one: Graph, more: Graph, count: int) -> dict[str, int]:
    """Map every value that depends on the inputs to its batch axis, or to `MIXED` if it has none. *one* and
    *more* are the graphs for *count* and for *count* + 1 elements."""
    found = dict.fromkeys(one.inputs, 0)
    for node in one.nodes:
        read = {name: found[name] for name in node.inputs if name in found}
        for name in filter(None, node.outputs if read else ()):
            axis = _grown(one, more, name, count)
            kept = axis != MIXED and all(_keeps(one, node, each, at, name, axis) for each, at in read.items())
            found[name] = axis if kept else MIXED
    return found


def _grown(one: Graph, more: Graph, name: str, count: int) -> int:
    """Return the axis of a value that has *count* elements in the graph *one* and *count* + 1 in *more*.
    Return `MIXED` if other axes differ, too, or if there is no such axis."""
    if name not in more.specs or len(one.specs[name].shape) != len(more.specs[name].shape):
        return MIXED
    pairs = list(zip(one.specs[name].shape, more.specs[name].shape, strict=True))
    grown = [i for i, (a, b) in enumerate(pairs) if a != b]
    return grown[0] if len(grown) == 1 and pairs[grown[0]] == (count, count + 1) else MIXED


def _keeps(graph: Graph, node: Node, name: str, at: int, result: str, axis: int) -> bool:
    """Return True if element i along axis *at* of an input becomes element i along *axis* of the result."""
    op, shape, made = node.op, graph.specs[name].shape, graph.specs[result].shape
    if op == "foreign":
        op, inner = node.attributes["op"], node.attributes["attributes"]
        node = Node(op, node.inputs, node.outputs, inner, node.source)
    if at == MIXED or op in NEVER:
        return False
    if op in IN_TIME:
        return at == 1
    if op in RESHAPES:
        return math.prod(shape[:at]) == math.prod(made[:axis])
    if op in ALONG and name == node.inputs[0]:
        return axis_of(node, len(shape), ALONG[op]) != at
    if op == "LayerNormalization":
        return axis_of(node, len(shape), -1) > at
    if op in ("Slice", "Pad"):
        return _keeps_order(graph, node, at, len(shape))
    # All other operators keep the batch at axis 0 or, if they broadcast, at the same distance from the last
    # axis.
    return op in WHEREVER or at == axis == 0 or len(shape) - at == len(made) - axis


def _keeps_order(graph: Graph, node: Node, at: int, rank: int) -> bool:
    """Return True if a Slice or Pad keeps the order of the elements along axis *at*. The caller has checked
    that the number of elements along this axis does not change."""
    arrays = [graph.constants.get(name) for name in node.inputs[1:]]
    numbers = [None if array is None else [int(v) for v in array.reshape(-1)] for array in arrays]
    numbers += [None] * (4 - len(numbers))
    if node.op == "Pad":
        return numbers[0] is not None and margins(node, rank, numbers[0], numbers[2])[at] == (0, 0)
    axes, steps = numbers[2] or range(rank), numbers[3]
    return steps is None or all(
        step > 0 for axis, step in zip(axes, steps, strict=False) if axis % rank == at
    )
