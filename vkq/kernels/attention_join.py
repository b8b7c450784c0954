"""The kernel that combines the results of attention to separate parts of the keys
(`vkq.numerics.attention.joined`)."""

from __future__ import annotations

import dataclasses

from ..numerics.attention import HIDDEN, LANES, base, weighed, weight
from ..numerics.elementary import maximum
from ..numerics.rational import add, divide, multiply
from ..numerics.steps import Number
from ..shader.assembler import KernelWriter

JOIN_WORDS = (
    "first_group", "count", "queries", "groups", "lines", "parts", "y_batch", "y_head", "y_row"
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class JoinForm:
    """The properties for which a kernel is compiled. sunk: the kernel has a buffer of sinks (heads,).
    guarded: NaN weights are 0."""

    width: int
    sunk: bool
    guarded: bool
    soft: bool


def join_module(form: JoinForm) -> bytes:
    """Write the kernel in which each invocation computes one number of the result, whose strides are push
    constants. It reads (batch, groups, parts, lines, width + 2) float32: for each row of a part, the weighted
    sums of values, then the largest score and the sum of weights."""
    k = KernelWriter((False, *[False] * form.sunk, True), len(JOIN_WORDS), LANES, form.soft)
    count, queries, groups, lines, parts = (k.word(i) for i in range(1, 6))
    at, width = k.workgroup() * LANES + k.lane(), form.width
    # invocations beyond the end compute the last number and do not store it
    here = (at < count).where(at, count - 1)
    row = here.divided(width)
    column, matrix = here - row * width, row.divided(lines)
    line, batch = row - matrix * lines, matrix.divided(groups)
    shared = line.divided(queries)
    head = (matrix - batch * groups) * lines.divided(queries) + shared
    zero, one = k.constant(0, "u"), k.constant(1, "u")
    low, nothing = k.constant(HIDDEN, "f"), k.constant(0.0, "f")

    def place(part: Number) -> Number:
        return ((matrix * parts + part) * lines + line) * (width + 2)

    def find(part: Number, state: tuple[Number, ...]) -> tuple[Number, ...]:
        return (maximum(state[0], k.load(0, place(part) + width).f),)

    sink = k.load(1, head).f if form.sunk else low
    (largest,) = k.loop(zero, parts, one, (sink,), find)
    subtracted = base(largest)

    def join(part: Number, state: tuple[Number, ...]) -> tuple[Number, ...]:
        first = place(part)
        factor = weight(k.load(0, first + width).f, subtracted)
        total = add(state[0], multiply(k.load(0, first + (width + 1)).f, factor))
        return total, state[1] + k.load(0, first + column).f * factor

    total, found = k.loop(
        zero, parts, one, (weight(sink, subtracted) if form.sunk else nothing, nothing), join
    )
    by_batch, by_head, by_row = (k.word(i) for i in range(6, 9))
    to = batch * by_batch + head * by_head + (line - shared * queries) * by_row + column
    with k.when(at < count):
        k.store(1 + form.sunk, to, weighed(found, divide(total.of(1.0), total), form.guarded))
    return k.finish()
