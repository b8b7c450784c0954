"""The kernel that combines the results of attention to separate parts of the keys
(`vkq.numerics.attention.joined`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..numerics.attention import HIDDEN, LANES, base, weighed, weight
from ..numerics.elementary import maximum, to_halves
from ..numerics.rational import add, divide, multiply
from ..numerics.steps import Number
from ..shader.assembler import KernelWriter

TOGETHER = 8  # number of parts that an invocation loads at once, so that the loads overlap
Turn = Callable[[tuple[Number, ...], list[Number]], tuple[Number, ...]]
JOIN_WORDS = (
    "first_group", "count", "queries", "groups", "lines", "parts", "y_batch", "y_head", "y_row"
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class JoinForm:
    """The compile-time properties of a kernel. *soft*, *converts*: as in
    `vkq.shader.assembler.KernelWriter`."""

    width: int  # elements of a value vector
    sunk: bool  # the kernel reads a buffer of sinks (heads,)
    guarded: bool  # a query with NaN weights gets the result 0
    half: bool  # the result is float16; then width and the strides of the result are even
    soft: bool
    converts: bool


def join_module(form: JoinForm) -> bytes:
    """Return the SPIR-V of the kernel that combines the parts. Each invocation computes one word of the
    result: an element, or two float16 elements. The strides of the result are push constants.

    The input is float32 (batch, groups, parts, lines, width + 2): for each row of a part, the weighted sums
    of the values, then the largest score and the sum of weights."""
    buffers = (False, *[False] * form.sunk, True)
    k = KernelWriter(buffers, len(JOIN_WORDS), LANES, form.soft, converts=form.converts)
    count, queries, groups, lines, parts = (k.word(i) for i in range(1, 6))
    at, width, per_word = k.workgroup() * LANES + k.lane(), form.width, 1 + form.half
    # invocations beyond the end compute the last word, and store nothing
    here = (at < count).where(at, count - 1) * per_word
    row = here.divided(width)
    column, matrix = here - row * width, row.divided(lines)
    line, batch = row - matrix * lines, matrix.divided(groups)
    shared = line.divided(queries)
    head = (matrix - batch * groups) * lines.divided(queries) + shared
    low, nothing = k.constant(HIDDEN, "f"), k.constant(0.0, "f")

    def place(part: Number) -> Number:
        return ((matrix * parts + part) * lines + line) * (width + 2)

    ends = column.of(width), column.of(width + 1)
    sink = k.load(1, head).f if form.sunk else low
    (largest,) = _over_parts(k, place, parts, ends[:1], (sink,), lambda state, x: (maximum(state[0], x[0]),))
    subtracted = base(largest)

    def join(state: tuple[Number, ...], x: list[Number]) -> tuple[Number, ...]:
        factor = weight(x[0], subtracted)
        sums = (sum_ + value * factor for sum_, value in zip(state[1:], x[2:], strict=True))
        return add(state[0], multiply(x[1], factor)), *sums

    first = weight(sink, subtracted) if form.sunk else nothing
    offsets = (*ends, *(column + i for i in range(per_word)))
    total, *found = _over_parts(k, place, parts, offsets, (first, *[nothing] * per_word), join)
    by_batch, by_head, by_row = (k.word(i) for i in range(6, 9))
    to = batch * by_batch + head * by_head + (line - shared * queries) * by_row + column
    inverse = divide(total.of(1.0), total)
    results = [weighed(sum_, inverse, form.guarded) for sum_ in found]
    with k.when(at < count):
        if form.half:
            k.store(1 + form.sunk, to >> 1, to_halves(*results))
        else:
            k.store(1 + form.sunk, to, *results)
    return k.finish()


def _over_parts(
    k: KernelWriter, place: Callable[[Number], Number], parts: Number, offsets: tuple[Number, ...],
    state: tuple[Number, ...], turn: Turn,
) -> tuple[Number, ...]:  # fmt: skip
    """Write loops that update the state part by part. Return the last state. *turn* gets the state and the
    floats of a part at the addresses ``place(part) + offset``, for each of the *offsets*."""
    zero, one, step = (k.constant(n, "u") for n in (0, 1, TOGETHER))
    whole = parts & (2**32 - TOGETHER)

    def turns(part: Number, state: tuple[Number, ...], many: int) -> tuple[Number, ...]:
        firsts = [place(part + i) for i in range(many)]
        for numbers in [[k.load(0, first + x).f for x in offsets] for first in firsts]:
            state = turn(state, numbers)
        return state

    state = k.loop(zero, whole, step, state, lambda part, s: turns(part, s, TOGETHER))
    return k.loop(whole, parts, one, state, lambda part, s: turns(part, s, 1))
