"""Intervals of float values, found from the operators that compute them: a Clip, a Sigmoid, a sum of flags.

They prove that a Cast of floats to int64 gives values that int32 holds, as the levels of a detector's boxes
and the places of a sorted row are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ..graph import Node
from ..operators import movement
from .ranges import INT32, Range
from .sweep import Sweep

Span = tuple[float, float]
ANY: Span = (-math.inf, math.inf)
# Operators whose results lie between the smallest and the largest element of their first input.
KEPT = {"Identity", "ReduceMax", "ReduceMin", "ReduceMean", *movement.OPERATORS} - {"Concat", "Pad"}
WHOLE: dict[str, Callable[[float], float]] = {"Floor": math.floor, "Ceil": math.ceil, "Round": round}
FUNCTIONS: dict[str, Span] = {"Sigmoid": (0, 1), "Softmax": (0, 1), "Tanh": (-1, 1), "HardSigmoid": (0, 1)}
SLACK = 2.0**-20  # relative error allowed for the rounding of float32 and float16 sums and products
DEEPEST = 16  # maximum number of operators between a Cast and the operators that state an interval


def whole_range(sweep: Sweep, name: str, ranges: Mapping[str, Range]) -> Range | None:
    """Return the range of a float value after a Cast to an integer, or None if it may exceed int32. *ranges*:
    the known ranges of integers."""
    low, high = (math.trunc(v) if abs(v) < INT32[1] else None for v in _span(sweep, name, ranges, DEEPEST))
    return None if low is None or high is None else (low, high)


def _span(sweep: Sweep, name: str, ranges: Mapping[str, Range], depth: int) -> Span:
    if name in ranges:
        return ranges[name]
    array, node = sweep.array(name), sweep.made.get(name)
    if array is not None:
        known = array.size and array.dtype.kind in "fiub" and np.isfinite(array).all()
        return (float(array.min()), float(array.max())) if known else ANY
    if sweep.specs[name].dtype == "bool" or node is None or not depth:
        return (0, 1) if sweep.specs[name].dtype == "bool" else ANY
    found = _of_node(node, [_span(sweep, x, ranges, depth - 1) if x else ANY for x in node.inputs], sweep)
    return ANY if any(map(math.isnan, found)) else found


def _of_node(node: Node, given: list[Span], sweep: Sweep) -> Span:
    """Return the interval of a node's result. *given*: the intervals of its inputs."""
    op, (low, high) = node.op, given[0]
    if op in FUNCTIONS:
        return FUNCTIONS[op]
    if op == "Relu":
        return max(low, 0), max(high, 0)
    if op == "Clip":
        least = given[1] if node.input(1) else (-math.inf, -math.inf)
        most = given[2] if node.input(2) else (math.inf, math.inf)
        return min(max(low, least[0]), most[0]), min(max(high, least[1]), most[1])
    if op in ("Min", "Max"):
        join = min if op == "Min" else max
        return join(v[0] for v in given), join(v[1] for v in given)
    if op in WHOLE:
        low, high = (WHOLE[op](v) if math.isfinite(v) else v for v in (low, high))
        return low, high
    if op in ("Add", "Sub", "Mul", "ReduceSum", "CumSum"):
        return _summed(node, given, sweep)
    if op in ("Where", "Concat"):
        parts = given[op == "Where" :]
        return min(v[0] for v in parts), max(v[1] for v in parts)
    return (low, high) if op in KEPT or op == "Cast" else ANY


def _summed(node: Node, given: list[Span], sweep: Sweep) -> Span:
    """Return the interval of a sum or product, a little wider, because sums and products are rounded."""
    if node.op in ("ReduceSum", "CumSum"):
        count = max(math.prod(sweep.specs[node.inputs[0]].shape), 1)
        ends = [v * n for v in given[0] for n in (1, count)]
    elif node.op == "Mul":
        ends = [x * y for x in given[0] for y in given[1]]
    else:
        second = given[1] if node.op == "Add" else (-given[1][1], -given[1][0])
        ends = [x + y for x, y in zip(given[0], second, strict=True)]
    low, high = (math.nan, math.nan) if any(map(math.isnan, ends)) else (min(ends), max(ends))
    return low - abs(low) * SLACK, high + abs(high) * SLACK
