"""Translates comparisons, selections by a condition, and division."""

from __future__ import annotations

from . import roots
from .elements import pair_names
from .file import FileOperator
from .layers import BYTES, activated, quantized_pair, real_range
from .lowering import Lowering, Unsupported
from .movement import Rule, same_parameters

REAL = {
    "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual", "LESS": "Less", "LESS_EQUAL": "LessOrEqual",
    "EQUAL": "Equal", "NOT_EQUAL": "Equal",
}  # fmt: skip


def compare(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower a comparison. A pair of 8-bit values indexes a table of 0 and 1."""
    numbers, op = operator.inputs[:2], operator.op
    names, first = pair_names(low, numbers)
    if low.dtype(numbers[0]) in BYTES:
        a, b = (low.q(n) for n in numbers)
        if a.dtype != b.dtype:
            raise Unsupported(f"its operands are {a.dtype} and {b.dtype}; both must have one type")
        name = low.emit("lookup2", names, table=roots.compared(op, a, b))
        name = low.emit("Cast", [name], to="bool")
    else:
        name = low.emit(REAL[op], names)
        name = low.emit("Not", [name]) if op == "NOT_EQUAL" else name
    low.give(operator.outputs[0], name, first)


def select(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SELECT or SELECT_V2. If the condition of SELECT has one axis and its operands have more, each
    Boolean selects a complete slice along the first axis. SELECT_V2 broadcasts as NumPy does."""
    (flags, a, b), y = operator.inputs[:3], operator.outputs[0]
    same_parameters(low, [a, b], y)
    rank, given = len(low.shape(a)), low.shape(flags)
    if operator.op == "SELECT" and len(given) == 1 < rank:
        name = low.reshape(low.last_of(flags), [*given, *(1,) * (rank - 1)])
        return low.give(y, low.emit("Where", [name, low.last_of(a), low.last_of(b)]))
    names, first = pair_names(low, operator.inputs)
    return low.give(y, low.emit("Where", names), first)


def divide(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower DIV. A pair of 8-bit values indexes a table of quotients."""
    numbers, y = operator.inputs[:2], operator.outputs[0]
    names, first = pair_names(low, numbers)
    limits = real_range(operator, activation)
    if low.dtype(numbers[0]) in BYTES:
        table = roots.quotient(*quantized_pair(low, (numbers[0], numbers[1]), y), limits)
        name = low.emit("lookup2", names, table=table)
    else:
        name = activated(low, low.emit("Div", names), limits)
    low.give(y, name, first)


RULES: dict[str, Rule] = {
    "DIV": divide, "SELECT": select, "SELECT_V2": select, **dict.fromkeys(REAL, compare),
}  # fmt: skip
