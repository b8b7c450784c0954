"""Rules of `simplify` for nodes whose result is a copy of an input, perhaps broadcast. Also moves Reshapes
before operators with Boolean results."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..graph import Node
from ..operators import elementwise
from .sweep import Sweep, every_equal

# If one operand equals this Boolean constant, the operator's result equals the other operand.
NEUTRAL = {"And": True, "Or": False}
COPIES = ("Expand", "Where", *NEUTRAL)


def copied(sweep: Sweep, node: Node) -> bool:
    """Remove a node whose operator is in COPIES if its result is a copy of one input. The readers of the
    result then read this input, or an Expand of this input."""
    name, spec = _copy_of(sweep, node), sweep.specs[node.outputs[0]]
    given = sweep.specs[name] if name else None
    if given is None or given.dtype != spec.dtype or (node.op == "Expand" and given != spec):
        return False
    if given == spec:
        sweep.alias(node.outputs[0], name)
    else:
        shape = sweep.constant(np.array(spec.shape, np.int64), "shape")
        sweep.emit("Expand", [name, shape], node.outputs[0], node.source)
    return True


def _copy_of(sweep: Sweep, node: Node) -> str:
    """Return the input that a node copies into its result; "" if it copies none."""
    if node.op == "Expand":
        return node.inputs[0]
    if node.op == "Where":
        flag = _flag(sweep, node.inputs[0])
        return "" if flag is None else node.inputs[1 if flag else 2]
    pairs = zip(node.inputs, node.inputs[::-1], strict=True)
    return next((other for name, other in pairs if _flag(sweep, name) is NEUTRAL[node.op]), "")


def _flag(sweep: Sweep, name: str) -> bool | None:
    """Return the Boolean that all elements of a constant have, or None if the elements differ, or if the
    value is computed."""
    array = sweep.array(name)
    return None if array is None or not every_equal(array) else bool(array.reshape(-1)[0])


def reshape(sweep: Sweep, x: str, shape: Sequence[int], output: str, source: str) -> str:
    """Emit a Reshape and return the name of its result. Two Reshapes become one; no Reshape is emitted if x
    has the shape already.

    A Reshape of computed Boolean values moves before the operator that computes them, to the operand of the
    operator. The operand has floats or integers, which are row-major in memory, so that its Reshape needs no
    dispatch."""
    before = sweep.producer(x, "Reshape")
    x = before.inputs[0] if before is not None else x
    if sweep.specs[x].shape == tuple(shape):
        if output:
            sweep.alias(output, x)
        return x
    test = _test(sweep, x, len(shape))
    if test is None:
        return sweep.reshape(x, shape, output, source)
    at, node = test
    inputs = list(node.inputs)
    inputs[at] = reshape(sweep, inputs[at], shape, "", source)
    return sweep.emit(node.op, inputs, output, node.source, **node.attributes)


def _test(sweep: Sweep, name: str, rank: int) -> tuple[int, Node] | None:
    """Return (i, node): the element-wise node that computes the Boolean value *name*, and the index i of the
    only operand with more than one element. Return None if the value has several readers, if several operands
    have more than one element, or if another operand has more than *rank* axes."""
    made = sweep.producer(name, *elementwise.OPERATORS)
    if made is None or sweep.specs[name].dtype != "bool" or sweep.uses.get(name) != 1:
        return None
    shapes = [sweep.specs[x].shape if x else () for x in made.inputs]
    values = [i for i, shape in enumerate(shapes) if math.prod(shape) != 1]
    others = [len(shape) for i, shape in enumerate(shapes) if i not in values]
    whole = len(values) == 1 and shapes[values[0]] == sweep.specs[name].shape
    return (values[0], made) if whole and max(others, default=0) <= rank else None
