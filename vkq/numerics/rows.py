"""Functions of rows: sums, softmax and normalizations along the last axis of float32 values. One
description serves NumPy and devices (`vkq.numerics.steps`).

The order of a sum depends only on the row's length. Four neighbouring elements are a run, and *lanes*
invocations (called lanes) share the row. Lane i adds the elements of the runs i, i + lanes, i + 2 lanes,
..., one after the other, and also adds up the rounding errors. Then, in each step, the lower half of the
lanes adds the sums of the upper half, until one lane is left.

The error of a sum is at most (2 + log2(lanes)) * 2^-24 times the sum of the magnitudes, plus 2^-100 for
each element.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .elementary import maximum, minimum
from .exponential import exp, log
from .rational import add, divide, multiply, square_root, subtract
from .steps import Array, Computed, Number, computed, exact_sum, flushed, is_nan, magnitude

MOST_LANES = 128
# Maximum number of runs of a lane, unless the row has MOST_LANES lanes. A kernel repeats its code for each
# run, so kernels for few rows would be slower with more runs (benchmarks/log.md).
LANE_RUNS = 3
RUN = 4  # number of neighbouring elements that a lane reads at once: a run
MOST_NORMAL = 1 << 23  # longest row for which `always_normal` may return True
SMALL = 2.0**-100  # rounding errors of smaller sums may be subnormal, and are ignored
Got = Sequence[Number]  # the results of earlier passes; each has one value for each row
Attributes = Mapping[str, float]
IDENTITY = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}
JOIN: dict[str, Callable[[Number, Number], Number]] = {
    "sum": add, "prod": multiply, "max": maximum, "min": minimum,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RowFunction:
    """A function of rows, computed in passes over a row. A pass reduces ``f(element, results of earlier
    passes)`` over the row; its result is ``then(reduced value, attributes)``. ``each`` returns the
    function's result for an element; without it, the function has one result for each row."""

    passes: tuple[tuple[str, Callable[[Number, Got], Number], Callable[[Number, Attributes], Number]], ...]
    each: Callable[[Number, Got], Number] | None = None


def _itself(x: Number, a: Any) -> Number:
    return x


def _mean(total: Number, a: Attributes) -> Number:
    return divide(total, total.of(a["count"]))


def _inverse_root(total: Number, a: Attributes) -> Number:
    return divide(total.of(1.0), square_root(add(_mean(total, a), total.of(a["epsilon"]))))


def _square(x: Number, got: Got) -> Number:
    return multiply(x, x)


def _apart(x: Number, got: Got) -> Number:
    return subtract(x, got[0])


def _apart_squared(x: Number, got: Got) -> Number:
    return _square(_apart(x, got), got)


def _grown(x: Number, got: Got) -> Number:
    return exp(_apart(x, got))


def _reduction(op: str, f: Callable[[Number, Got], Number], then: Any = _itself) -> RowFunction:
    return RowFunction(((op, f, then),))


def _largest_log(total: Number, a: Attributes) -> Number:
    return log(total)


FUNCTIONS: dict[str, RowFunction] = {
    "softmax": RowFunction(
        (("max", _itself, _itself), ("sum", _grown, lambda s, a: divide(s.of(1.0), s))),
        lambda x, got: multiply(_grown(x, got), got[1]),
    ),
    "log_softmax": RowFunction(
        (("max", _itself, _itself), ("sum", _grown, _largest_log)),
        lambda x, got: subtract(_apart(x, got), got[1]),
    ),
    "normalize": RowFunction(
        (("sum", _itself, _mean), ("sum", _apart_squared, _inverse_root)),
        lambda x, got: multiply(_apart(x, got), got[1]),
    ),
    "normalize_root": RowFunction((("sum", _square, _inverse_root),), lambda x, got: multiply(x, got[0])),
    "ReduceSum": _reduction("sum", _itself),
    "ReduceMean": _reduction("sum", _itself, _mean),
    "ReduceMax": _reduction("max", _itself),
    "ReduceMin": _reduction("min", _itself),
    "ReduceProd": _reduction("prod", _itself),
    "ReduceL1": _reduction("sum", lambda x, got: magnitude(x)),
    "ReduceL2": _reduction("sum", _square, lambda s, a: square_root(s)),
    "ReduceSumSquare": _reduction("sum", _square),
    "ReduceLogSum": _reduction("sum", _itself, _largest_log),
    "ReduceLogSumExp": RowFunction((("max", _itself, _itself), ("sum", _grown, _largest_log))),
}


def lanes_of(length: int) -> int:
    """Return the number of invocations that share a row: the smallest power of 2 with at most LANE_RUNS
    runs for each, but at most MOST_LANES."""
    share = RUN * LANE_RUNS
    return min(MOST_LANES, 1 << (-(-length // share) - 1).bit_length()) if length else 1


def always_normal(name: str, length: int, epsilon: float, scale: float) -> bool:
    """Return True if neither flushing nor SMALL can change the results of a function of dequantized bytes:
    no step but the last gives infinity or a magnitude between 0 and 2^-100.

    Proof: let the scale be in [2^e, 2^(e+1)). Elements and their sums are multiples of 2^(e-23). So the
    mean is 0 or at least 2^(e-23) / length. The difference of an element and the mean is the mean itself,
    at least half of the scale, or a multiple of 2^(e-24). Its square is 0 or at least 2^(2e-48) / length^2,
    which is at least 2^-100.
    """
    normal = name in ("normalize", "normalize_root") and length <= MOST_NORMAL and 0 <= epsilon <= 2.0**60
    return normal and length * 2.0**-24 <= scale <= 2.0**30


def gathered(op: str, state: tuple[Number, Number], x: Number) -> tuple[Number, Number]:
    """Return the state (total, sum of rounding errors) of a reduction after one more element *x*."""
    total, lost = state
    if op != "sum":
        return JOIN[op](total, x), lost
    found, more = exact_sum(total, x)
    if not x.flushes:
        return found, lost + more
    fit = (magnitude(total) >= SMALL) & (magnitude(x) >= SMALL)
    return flushed(found), fit.where(lost + more, lost)


def lane_result(op: str, state: tuple[Number, Number]) -> Number:
    """Return the result of one lane: the total plus the sum of its rounding errors."""
    total, lost = state
    return is_nan(lost).where(total, flushed(total + lost)) if op == "sum" else total


def finished(got: Got) -> Number:
    """Return the result of a reduction: that of its only pass, or the sum of its two passes
    (ReduceLogSumExp)."""
    return add(got[0], got[1]) if len(got) > 1 else got[0]


def computed_rows(name: str, x: Array, attributes: Attributes) -> Array:
    """Return the function *name* of each row of x (rows, length), computed in NumPy: (rows, length), or
    (rows,) for a reduction."""
    function = FUNCTIONS[name]
    (rows, length), lanes = x.shape, lanes_of(x.shape[1])
    turns = -(-length // (lanes * RUN))
    a = {**attributes, "count": float(length)}
    with np.errstate(all="ignore"):
        numbers = computed(flushed, x)
        padded = np.zeros((rows, turns, lanes, RUN), np.float32)
        padded.reshape(rows, turns * lanes * RUN)[:, :length] = numbers
        inside = (np.arange(padded[0].size) < length).reshape(turns, lanes, RUN)
        got: list[Number] = []
        for op, f, then in function.passes:
            state = Computed(np.full((rows, lanes), IDENTITY[op])), Computed(np.zeros((rows, lanes)))
            for turn, j in np.ndindex(turns, RUN):
                part = Computed(padded[:, turn, :, j])
                there = Computed(inside[turn, :, j], "b")
                after = gathered(op, state, f(part, got))
                state = there.where(after[0], state[0]), there.where(after[1], state[1])  # type: ignore[assignment]
            total = _array(lane_result(op, state))
            while total.shape[1] > 1:
                half = total.shape[1] // 2
                total = _array(JOIN[op](Computed(total[:, :half]), Computed(total[:, half:])))
            got.append(then(Computed(total), a))
        found = _array(function.each(Computed(numbers), got) if function.each else finished(got))
        found = np.where(np.isnan(found), np.float32(np.nan), found)
        return found if function.each else found[:, 0]


def _array(x: Number) -> Array:
    assert isinstance(x, Computed)
    return x.array
