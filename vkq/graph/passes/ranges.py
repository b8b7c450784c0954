"""Range inference for integers: computes the range of a result from the ranges of its operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..graph import Node, Spec
from ..operators import movement

Range = tuple[int, int]
INT32: Range = (-(1 << 31), (1 << 31) - 1)


def fits(found: Range) -> bool:
    """Return True if a range is within int32."""
    return INT32[0] <= found[0] and found[1] <= INT32[1]


def hull(ranges: Sequence[Range]) -> Range:
    """Return the smallest range that contains all given ranges."""
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def result_range(node: Node, given: Sequence[Range], specs: Mapping[str, Spec]) -> Range | None:
    """Return the range of an operator's integer result; None if it is unknown. *given* has the ranges of
    the operands in order."""
    op = node.op
    if op in ("Add", "Sum"):
        return sum(low for low, _ in given), sum(high for _, high in given)
    if op in ("Sub", "Mul", "Div") and len(given) == 2:
        return _of_two(op, *given)
    if op == "Mod" and not node.attributes.get("fmod", 0) and len(given) == 2:
        end = max(map(abs, given[1]))  # Mod's result has the sign of the divisor
        return (0 if given[1][0] > 0 else -end), end
    if op == "Neg":
        return -given[0][1], -given[0][0]
    if op == "Abs":
        ends = [abs(end) for end in given[0]]
        return (0 if given[0][0] <= 0 <= given[0][1] else min(ends)), max(ends)
    if op == "Max":
        return max(low for low, _ in given), max(high for _, high in given)
    if op == "Min":
        return min(low for low, _ in given), min(high for _, high in given)
    if op in ("scatter", "place"):
        return hull(given) if node.attributes.get("reduction", "none") in ("none", "max", "min") else None
    if op in ("ReduceSum", "CumSum"):
        shape = specs[node.inputs[0]].shape
        count = max(math.prod(shape), 1)
        return min(given[0][0], given[0][0] * count), max(given[0][1], given[0][1] * count)
    if op in ("Where", "Clip", "Concat"):
        return hull(given)
    if op == "Pad":
        return hull([*given[:1], (0, 0)]) if not node.input(2) else None
    if op in movement.OPERATORS or op in ("Identity", "ReduceMax", "ReduceMin", "Sign", "Relu", "Cast"):
        return hull([*given[:1], *([(-1, 1)] if op == "Sign" else [(0, 0)] if op == "Relu" else [])])
    return None


def _of_two(op: str, a: Range, b: Range) -> Range | None:
    if op == "Sub":
        return a[0] - b[1], a[1] - b[0]
    if op == "Div":
        if b[0] <= 0 <= b[1]:
            return None
        ends = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x in a for y in b]
        return min(*ends, 0), max(*ends, 0)
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)
