"""Translates running sums, reductions, normalizations and largest elements of rows, and quotients that are
rounded down."""

from __future__ import annotations

import math

import numpy as np

from ..graph.graph import Node
from ..graph.operators.table import infer
from .elements import pair_names
from .file import FileOperator
from .layers import BYTES, activated, real_range
from .lowering import Lowering, Unsupported
from .movement import Rule, same_parameters
from .parts import axis_of
from .unit import unit_rows

LEAST_NORM = 1e-6  # LiteRT divides by at least this number


def no_bytes(low: Lowering, operator: FileOperator) -> None:
    """Raise Unsupported if the operator's first input is 8-bit."""
    if low.dtype(operator.inputs[0]) in BYTES:
        raise Unsupported(f"vkq does not support {operator.op} of 8-bit numbers")


def running(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower CUMSUM: running sums along an axis."""
    no_bytes(low, operator)
    x, o = operator.inputs[0], operator.options
    (axis,) = low.numbers(operator.inputs[1], "axis")
    number = low.constant(np.array(axis_of(operator, axis, len(low.shape(x)))), "axis")
    exclusive, reverse = (int(o.get(name, 0)) for name in ("exclusive", "reverse"))
    name = low.emit("CumSum", [low.last_of(x), number], exclusive=exclusive, reverse=reverse)
    low.give(operator.outputs[0], name)


def largest(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower TOPK_V2: the k largest elements of each row and their indices. Of equal elements, those with
    smaller indices come first."""
    x, (y, places) = operator.inputs[0], operator.outputs
    (k,), shape, dtype = low.numbers(operator.inputs[1], "k"), low.shape(x), low.dtype(x)
    same_parameters(low, [x], y)
    if dtype not in (*BYTES, "float32", "int32"):
        raise Unsupported(f"x is {dtype}; it must be float32, int32 or 8-bit")
    if not shape or 0 in shape or not 0 < k <= shape[-1]:
        raise Unsupported(f"k is {k} and x has shape {shape}; k must be from 1 to the last axis's size")
    name = low.reshape(low.last_of(x), (math.prod(shape[:-1]), shape[-1]))
    pair = largest_of(low, low.emit("Cast", [name], to="int32") if dtype in BYTES else name, k)
    for number, made in zip((y, places), pair, strict=True):
        if low.specs[made].dtype != low.dtype(number):
            made = low.emit("Cast", [made], to=low.dtype(number))
        low.give(number, low.reshape(made, (*shape[:-1], k)))


def largest_of(low: Lowering, name: str, k: int) -> tuple[str, str]:
    """Emit the k largest elements of each row of *name* (rows, length) and their int32 indices. Return the
    names of both."""
    count = low.specs[name].shape[1]
    pair = low.fresh(f"{low.source}/largest"), low.fresh(f"{low.source}/places")
    node = Node("topk", (name,), pair, {"k": k, "largest": 1, "range": (0, count - 1)}, low.source)
    low.nodes.append(node)
    low.specs.update(zip(pair, infer(node, [low.specs[name]], [None]), strict=True))
    return pair


def normalized(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower L2_NORMALIZATION: each row divided by the root of the sum of its squares."""
    if low.dtype(operator.inputs[0]) in BYTES:
        return low.give(operator.outputs[0], unit_rows(low, operator))
    x, name = operator.inputs[0], low.last_of(operator.inputs[0])
    axes = low.constant(np.array([len(low.shape(x)) - 1]), "axes")
    total = low.emit("ReduceSum", [low.emit("Mul", [name, name]), axes], keepdims=1)
    least = low.constant(np.float32(LEAST_NORM), "least")
    quotient = low.emit("Div", [name, low.emit("Max", [low.emit("Sqrt", [total]), least])])
    return low.give(operator.outputs[0], activated(low, quotient, real_range(operator, activation)))


def log_softmax(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower LOG_SOFTMAX along the last axis."""
    no_bytes(low, operator)
    low.give(operator.outputs[0], low.emit("LogSoftmax", [low.last_of(operator.inputs[0])], axis=-1))


def one_hot(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower ONE_HOT. An index outside of 0 to depth - 1 selects nothing."""
    (x, depth, *values), y = operator.inputs, operator.outputs[0]
    shape, (count,) = low.shape(x), low.numbers(depth, "depth")
    for value in values:
        same_parameters(low, [value], y)
    axis = axis_of(operator, operator.options.get("axis", -1), len(shape) + 1)
    line = np.arange(count, dtype=low.dtype(x)).reshape(-1, *(1,) * (len(shape) - axis))
    tall = low.reshape(low.last_of(x), (*shape[:axis], 1, *shape[axis:]))
    same = low.emit("Equal", [tall, low.constant(line, "line")])
    on, off = (low.reshape(low.last_of(value), ()) for value in values)
    low.give(y, low.emit("Where", [same, on, off]))


def added(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower ADD_N, a sum of any number of tensors."""
    no_bytes(low, operator)
    names, first = pair_names(low, operator.inputs)
    total = names[0]
    for name in names[1:]:
        total = low.emit("Add", [total, name])
    low.give(operator.outputs[0], low.emit("Identity", [total]) if len(names) == 1 else total, first)


def floor_division(remainder: bool) -> Rule:
    """Return a rule that lowers FLOOR_DIV, or with *remainder* FLOOR_MOD. The quotient is rounded down, so a
    remainder has the sign of the divisor."""

    def rule(low: Lowering, operator: FileOperator, activation: str) -> None:
        no_bytes(low, operator)
        names, first = pair_names(low, operator.inputs)
        if low.dtype(operator.inputs[0]) == "float32":
            name = _of_floats(low, names, remainder)
        elif remainder:
            name = low.emit("Mod", names, fmod=0)
        else:
            rest = low.emit("Mod", names, fmod=0)
            name = low.emit("Div", [low.emit("Sub", [names[0], rest]), names[1]])
        low.give(operator.outputs[0], name, first)

    return rule


def _of_floats(low: Lowering, names: list[str], remainder: bool) -> str:
    """Emit the quotient of floats, rounded down, or the remainder. Return the result's name."""
    zero = low.constant(np.float32(0), "zero")
    rest = low.emit("Mod", names, fmod=1)
    signs = [low.emit("Less", [name, zero]) for name in (rest, names[1])]
    other = low.emit("And", [low.emit("Xor", signs), low.emit("Not", [low.emit("Equal", [rest, zero])])])
    rest = low.emit("Where", [other, low.emit("Add", [rest, names[1]]), rest])
    if remainder:
        return rest
    # not the floor of x / y: float32 may have rounded x / y up to the next integer
    return low.emit("Round", [low.emit("Div", [low.emit("Sub", [names[0], rest]), names[1]])])


def reduction(op: str) -> Rule:
    """Return a rule that lowers a reduction of floats, integers or Booleans to *op*. Booleans are reduced as
    int32."""

    def rule(low: Lowering, operator: FileOperator, activation: str) -> None:
        no_bytes(low, operator)
        x, y = operator.inputs[0], operator.outputs[0]
        flags, rank = low.dtype(x) == "bool", max(len(low.shape(x)), 1)
        axes = sorted({a % rank for a in low.numbers(operator.inputs[1], "axes")})
        name = low.emit("Cast", [low.last_of(x)], to="int32") if flags else low.last_of(x)
        numbers, keep = low.constant(np.array(axes, np.int64), "axes"), int(operator.options["keep_dims"])
        name = low.emit(op, [name, numbers], keepdims=keep)
        low.give(y, low.emit("Cast", [name], to="bool") if flags else name)

    return rule


RULES: dict[str, Rule] = {
    "CUMSUM": running, "TOPK_V2": largest, "L2_NORMALIZATION": normalized, "LOG_SOFTMAX": log_softmax,
    "ONE_HOT": one_hot, "ADD_N": added, "FLOOR_DIV": floor_division(False), "FLOOR_MOD": floor_division(True),
    "REDUCE_PROD": reduction("ReduceProd"), "REDUCE_ANY": reduction("ReduceMax"),
    "REDUCE_ALL": reduction("ReduceMin"),
}  # fmt: skip
