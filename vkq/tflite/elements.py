"""Translates the element-wise operators of a file. On 8-bit values, vkq's operator is used if it gives
LiteRT's results; otherwise a table of LiteRT's results. On floats, the graph's float operator is used."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph.graph import Array
from ..numerics.elementwise import BinaryOp, binary_table
from ..numerics.qparams import QParams
from . import arithmetic, beyond, roots
from .arithmetic import bounds_of, clamped, every, stored
from .file import FileOperator
from .layers import BYTES, activated, quantized_pair, real_range
from .lowering import Lowering, Unsupported

FLOATS = ("float32", "float16")
WHOLE = ("ABS", "NEG", "SIGN")  # operators of one operand that LiteRT also computes on int32
AT_ONCE = 16  # LiteRT's vector instructions compute this many elements at a time
RELUS = ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")


def pair_names(low: Lowering, numbers: Sequence[int]) -> tuple[list[str], bool]:
    """Return (names, first). *names*: the names of the values of the tensors with these *numbers*, all in the
    same order of axes. *first*: True if this order is channels-first."""
    rank = max(len(low.shape(n)) for n in numbers)
    first = rank == 4 and low.channels_first(numbers)
    return [low.of(n, first) for n in numbers], first


def binary(op: BinaryOp) -> Callable[[Lowering, FileOperator, str], None]:
    """Return a rule that lowers ADD, SUB or MUL. On 8-bit values, vkq's operator is used if it gives
    LiteRT's results for all pairs of values; otherwise a table of LiteRT's results."""

    def rule(low: Lowering, operator: FileOperator, activation: str) -> None:
        numbers, y = operator.inputs[:2], operator.outputs[0]
        limits = real_range(operator, activation)
        names, first = pair_names(low, numbers)
        if low.dtype(numbers[0]) not in BYTES:
            name = activated(low, low.emit(op.capitalize(), names), limits)
        else:
            a, b, q = quantized_pair(low, (numbers[0], numbers[1]), y)
            name = _quantized_binary(low, op, names, (a, b, q), bounds_of(limits, q))
        low.give(y, name, first)

    return rule


def _quantized_binary(
    low: Lowering, op: BinaryOp, names: list[str], q: tuple[QParams, QParams, QParams], limits: Any
) -> str:
    a, b, y = q
    if op == "mul" and not beyond.products_supported(a, b, y):
        return low.emit("lookup2", names, table=clamped(beyond.product_table(a, b, y), limits, y))
    if op != "mul" and not beyond.sums_supported(a, b, y):
        table = beyond.sum_table(a, b, y, op == "sub")
        return low.emit("lookup2", names, table=clamped(table, limits, y))
    product = op == "mul"
    table = arithmetic.product_table(a, b, y) if product else arithmetic.sum_table(a, b, y, op == "sub")
    table, scales = clamped(table, limits, y), arithmetic.product_scales if product else arithmetic.sum_scales
    for of_a, of_b, of_y in scales(a, b, y):
        cut = limits and tuple(float(round(v / y.scale)) * of_y.scale for v in limits)
        if np.array_equal(binary_table(op, of_a, of_b, of_y, cut).T, table):
            return low.emit(op, names, a=of_a, b=of_b, y=of_y, activation=cut)
    return low.emit("lookup2", names, table=table)


def greatest(smaller: bool) -> Callable[[Lowering, FileOperator, str], None]:
    """Return a rule that lowers MAXIMUM, or MINIMUM if *smaller*. 8-bit values are compared as stored
    integers."""

    def rule(low: Lowering, operator: FileOperator, activation: str) -> None:
        numbers, y = operator.inputs[:2], operator.outputs[0]
        names, first = pair_names(low, numbers)
        if low.dtype(numbers[0]) not in BYTES:
            name = low.emit("Min" if smaller else "Max", names)
        else:
            a, b, q = quantized_pair(low, (numbers[0], numbers[1]), y)
            if not a == b == q:
                raise Unsupported(f"its operands and its result have {a}, {b} and {q}; they must be equal")
            choose = np.minimum if smaller else np.maximum
            name = low.emit("lookup2", names, table=stored(choose(every(a)[:, None], every(a)[None]), a))
        low.give(y, name, first)

    return rule


def squared_difference(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SQUARED_DIFFERENCE."""
    numbers, y = operator.inputs[:2], operator.outputs[0]
    names, first = pair_names(low, numbers)
    if low.dtype(numbers[0]) not in BYTES:
        apart = low.emit("Sub", names)
        return low.give(y, low.emit("Mul", [apart, apart]), first)
    table = arithmetic.squared_difference(*quantized_pair(low, (numbers[0], numbers[1]), y))
    return low.give(y, low.emit("lookup2", names, table=table), first)


def of_floats(op: str) -> Callable[[Lowering, FileOperator, str], None]:
    """Return a rule that lowers an operator on floats, integers or booleans to *op*. The rule raises
    Unsupported for 8-bit values."""

    def rule(low: Lowering, operator: FileOperator, activation: str) -> None:
        if any(low.dtype(n) in BYTES for n in operator.inputs):
            raise Unsupported(f"vkq does not support {operator.op} of 8-bit numbers")
        names, first = pair_names(low, operator.inputs)
        low.give(operator.outputs[0], low.emit(op, names), first)

    return rule


def square(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SQUARE of floats as a product of the operand with itself."""
    of_floats("Mul")(low, dataclasses.replace(operator, inputs=operator.inputs * 2), activation)


OF_FLOATS = {"POW": "Pow", "LOGICAL_AND": "And", "LOGICAL_OR": "Or", "LOGICAL_NOT": "Not"}


def by_table(low: Lowering, operator: FileOperator, table: Array) -> None:
    """Lower an operator on one 8-bit value to a lookup in *table*."""
    x, y = operator.inputs[0], operator.outputs[0]
    first = low.channels_first([x])
    low.give(y, low.emit("lookup", [low.of(x, first)], table=table), first)


def by_node(low: Lowering, operator: FileOperator, op: str, **attributes: Any) -> None:
    """Lower an operator on floats to the graph's operator *op*."""
    x, y = operator.inputs[0], operator.outputs[0]
    first = low.channels_first([x])
    low.give(y, low.emit(op, [low.of(x, first)], **attributes), first)


FIXED_POINT = {
    "HARD_SWISH": arithmetic.hard_swish, "ABS": arithmetic.magnitude, "RSQRT": roots.reciprocal_root,
    "SQRT": roots.root,
}  # fmt: skip
REAL_NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "LOGISTIC": ("Sigmoid", {}), "TANH": ("Tanh", {}), "ELU": ("Elu", {}), "EXP": ("Exp", {}),
    "LOG": ("Log", {}), "ABS": ("Abs", {}), "NEG": ("Neg", {}), "SQRT": ("Sqrt", {}), "FLOOR": ("Floor", {}),
    "CEIL": ("Ceil", {}), "ROUND": ("Round", {}), "SIN": ("Sin", {}), "COS": ("Cos", {}),
    "HARD_SWISH": ("HardSwish", {}), "SIGN": ("Sign", {}),
}  # fmt: skip


def unary(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower an operator with one operand, such as LOGISTIC or GELU."""
    x, op = operator.inputs[0], operator.op
    if low.dtype(x) in FLOATS:
        if op == "RSQRT":
            first = low.channels_first([x])
            root = low.emit("Sqrt", [low.of(x, first)])
            return low.give(operator.outputs[0], low.emit("Reciprocal", [root]), first)
        if op == "GELU":
            return by_node(
                low, operator, "Gelu", approximate="tanh" if operator.options["approximate"] else "none"
            )
        return by_node(low, operator, REAL_NODES[op][0], **REAL_NODES[op][1])
    if op in WHOLE and low.dtype(x) == "int32":
        return by_node(low, operator, REAL_NODES[op][0])
    if op in FIXED_POINT:
        return by_table(low, operator, FIXED_POINT[op](*_two(low, operator)))
    op = "GELU-tanh" if operator.options.get("approximate") else op
    if op not in arithmetic.REAL:
        raise Unsupported(f"vkq does not know LiteRT's formula of {op} for {low.dtype(x)}")
    return by_table(low, operator, arithmetic.real_table(op, *_two(low, operator)))


def _two(low: Lowering, operator: FileOperator) -> tuple[QParams, QParams]:
    x, y = low.q(operator.inputs[0]), low.q(operator.outputs[0])
    if x.dtype != y.dtype:
        raise Unsupported(f"x is {x.dtype} and y {y.dtype}; both must have one type")
    return x, y


def relu(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower RELU, RELU6, RELU_N1_TO_1 or RELU_0_TO_1."""
    limits = (0.0, 1.0) if operator.op == "RELU_0_TO_1" else real_range(operator, operator.op)
    if low.dtype(operator.inputs[0]) in BYTES:
        return by_table(low, operator, arithmetic.bounded(*_two(low, operator), limits))
    x, y = operator.inputs[0], operator.outputs[0]
    first = low.channels_first([x])
    return low.give(y, activated(low, low.of(x, first), limits), first)


def leaky_relu(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower LEAKY_RELU."""
    alpha = float(operator.options["alpha"])
    if low.dtype(operator.inputs[0]) in BYTES:
        x, y = _two(low, operator)
        rule = arithmetic.leaky if beyond.is_converted(x, y, alpha) else beyond.leaky
        return by_table(low, operator, rule(x, y, alpha))
    return by_node(low, operator, "LeakyRelu", alpha=alpha)


def prelu(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower PRELU. Its slopes are a tensor that broadcasts to x."""
    numbers, y = operator.inputs[:2], operator.outputs[0]
    names, first = pair_names(low, numbers)
    if low.dtype(numbers[0]) not in BYTES:
        name = low.emit("PRelu", names)
    else:
        x, alpha, q = quantized_pair(low, (numbers[0], numbers[1]), y)
        name = low.emit("lookup2", names, table=arithmetic.prelu(x, alpha, q))
    low.give(y, name, first)


def cast(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower CAST. It converts the stored integers, whatever their scale is."""
    by_node(low, operator, "Cast", to=low.dtype(operator.outputs[0]))


def quantize(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower QUANTIZE. XNNPACK multiplies a float by the float32 reciprocal of the scale instead of dividing
    by the scale."""
    x, y = operator.inputs[0], operator.outputs[0]
    q = low.q(y)
    if low.dtype(x) in BYTES and (low.dtype(x) != low.dtype(y) or not beyond.is_converted(low.q(x), q)):
        return _by_fixed(low, operator)
    if low.dtype(x) in BYTES:
        return by_table(low, operator, arithmetic.requantized(*_two(low, operator)))
    first = low.channels_first([x])
    factor = low.constant(np.float32(1) / np.float32(q.scale), "reciprocal")
    name = low.emit("Mul", [low.of(x, first), factor])
    unit = QParams(1.0, q.zero_point, q.dtype)
    return low.give(y, low.emit("quantize", [name], y=unit), first)


def _by_fixed(low: Lowering, operator: FileOperator) -> None:
    """Lower a QUANTIZE of 8-bit values that LiteRT's own kernel computes, as a table lookup. The kernel may
    round the elements after the last full vector of 16 differently. Then these elements need a second table:
    a lookup2 selects the table of each element by a constant second operand."""
    x, y = operator.inputs[0], operator.outputs[0]
    vector, single = arithmetic.other_type(low.q(x), low.q(y))
    shape = low.shape(x)
    size = math.prod(shape)
    if size % AT_ONCE == 0 or np.array_equal(vector, single):
        return by_table(low, operator, vector)
    last = np.full(size, np.iinfo(low.dtype(x)).min, low.dtype(x))
    last[size - size % AT_ONCE :] += 1
    table = np.repeat(vector[:, None], 256, 1)
    table[:, 1] = single
    names = [low.last_of(x), low.constant(last.reshape(shape), "last")]
    return low.give(y, low.emit("lookup2", names, table=table))


def dequantize(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower DEQUANTIZE. A constant is dequantized during the lowering; a float16 constant becomes float32."""
    x, y = operator.inputs[0], operator.outputs[0]
    if low.dtype(x) == "float16":
        if x in low.arrays:
            low.spend(2 * low.arrays[x].nbytes)
            low.arrays[y] = low.arrays[x].astype(np.float32)
            return None
        return by_node(low, operator, "Cast", to="float32")
    if x in low.arrays:
        tensor = low.tensor(x)
        if tensor.scales.size not in (1, low.arrays[x].shape[tensor.axis] if low.arrays[x].ndim else 1):
            raise Unsupported(f"{tensor.name!r} has {tensor.scales.size} scales, not 1 or 1 for each slice")
        along = [1] * low.arrays[x].ndim
        if tensor.scales.size > 1:
            along[tensor.axis] = -1
        low.spend(4 * low.arrays[x].size)
        points, scales = tensor.zero_points.reshape(along), tensor.scales.reshape(along)
        low.arrays[y] = (low.arrays[x].astype(np.int64) - points).astype(np.float32) * scales
        return None
    return by_node(low, operator, "dequantize", x=low.q(x))


RULES: dict[str, Callable[[Lowering, FileOperator, str], None]] = {
    "ADD": binary("add"), "SUB": binary("sub"), "MUL": binary("mul"), "MAXIMUM": greatest(False),
    "MINIMUM": greatest(True), "LEAKY_RELU": leaky_relu, "PRELU": prelu,
    "SQUARED_DIFFERENCE": squared_difference, "CAST": cast,
    "QUANTIZE": quantize, "DEQUANTIZE": dequantize,
    "SQUARE": square, **{name: of_floats(op) for name, op in OF_FLOATS.items()},
    **dict.fromkeys(RELUS, relu), **dict.fromkeys([*REAL_NODES, "GELU", "RSQRT"], unary),
}  # fmt: skip
