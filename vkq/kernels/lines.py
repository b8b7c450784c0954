"""Operators on rows of values on a device (`vkq.numerics.lines`): running sums, reductions, largest values,
and scatters by row index. Floats are combined in NumPy's order, so every device gives the same bits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ..layout.extent import Spec
from ..numerics.described import KINDS
from ..numerics.elementary import order
from ..numerics.lines import IDENTITY, JOINS, REDUCTIONS, joined
from ..numerics.steps import Kind, Number, is_nan
from ..runtime.builder import Builder, Value
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .chain_shader import element

LOCAL = 64
MOST_ROUNDS = 65_000  # maximum number of loop iterations that every driver allows
MOST_WORK = 1 << 33  # maximum sum of the iterations of all invocations of a dispatch


def beyond(count: int, length: int) -> str | None:
    """Return the reason why a dispatch cannot run *count* invocations of *length* loop iterations each, or
    None."""
    if length <= MOST_ROUNDS and count * length <= MOST_WORK:
        return None
    return f"needs {count} loops of {length} iterations; at most {MOST_ROUNDS} each and {MOST_WORK} in all"


def running_along(b: Builder, x: Value, axis: int, how: str, exclusive: bool, backwards: bool) -> Value:
    """Add a running sum (*how* is "add") or running product of float32 or int32 values along an axis to a
    plan."""
    shape = x.spec.shape
    y = b.new(Spec(shape, x.spec.dtype))
    if y.spec.size:
        length, inner = shape[axis], math.prod(shape[axis + 1 :])
        program = b.device.program(_running(how, exclusive, backwards, x.spec.dtype, b.device.soft_float))
        b.dispatch(program, [x, y], {"count": x.spec.size // length, "length": length, "inner": inner})
    return y


def reduced_along(b: Builder, x: Value, kept: int, how: str) -> Value:
    """Add a reduction of int32 values to a plan: each row, which spans the axes from *kept* on, becomes one
    result. *how*: sum, product, maximum or minimum."""
    shape = x.spec.shape
    y = b.new(Spec(shape[:kept], "int32"))
    if y.spec.size:
        length = math.prod(shape[kept:])
        program = b.device.program(_reduced_together(how) if length >= LOCAL else _reduced(how))
        b.dispatch(program, [x, y], {"count": y.spec.size, "length": length})
    return y


def largest(b: Builder, x: Value, k: int, from_above: bool) -> tuple[Value, Value]:
    """Add the k largest (or smallest) values of each row of x (rows, length) and their indices to a plan."""
    lines, length = x.spec.shape
    y, places = b.new(Spec((lines, k), x.spec.dtype)), b.new(Spec((lines, k), "int32"))
    if y.spec.size:
        program = b.device.program(_largest(from_above, x.spec.dtype))
        push = {"count": lines * length, "length": length, "k": k}
        b.dispatch(program, [x, y, places], push, macs=lines * length * length)
    return y, places


def scattered_rows(b: Builder, x: Value, ids: Value, updates: Value, reduction: str) -> Value:
    """Add a scatter by rows to a plan. Row i of x (rows, inner) is combined by *reduction* with every row
    of *updates* (count, inner) whose entry in *ids* is i."""
    y = b.new(Spec(x.spec.shape, x.spec.dtype))
    if y.spec.size:
        program = b.device.program(_scattered(reduction, x.spec.dtype, b.device.soft_float))
        push = {"count": y.spec.size, "length": ids.spec.size, "inner": x.spec.shape[1]}
        b.dispatch(program, [x, ids, updates, y], push, macs=y.spec.size * ids.spec.size)
    return y


def placed_rows(b: Builder, x: Value, start: Value, updates: Value) -> Value:
    """Add the replacement of consecutive rows to a plan. In each line of x (batch, lines, rows, inner),
    *updates* (batch, lines, count, inner) replaces the *count* rows from start[batch] on, and wraps around:
    row 0 follows the last row. start: int32, from 0 to rows - 1. A row must be a whole number of 32-bit
    words."""
    _, lines, rows, inner = x.spec.shape
    y = b.new(Spec(x.spec.shape, x.spec.dtype))
    if y.spec.size:
        words = inner * np.dtype(x.spec.dtype).itemsize // 4
        fours = words % 4 == 0
        many = words // 4 if fours else words
        count, every = updates.spec.shape[2], x.spec.size // inner // rows
        push = {
            "count": every * rows * many, "inner": many, "rows": rows, "lines": lines, "updates": count,
            "span": rows,
        }  # fmt: skip
        b.dispatch(b.device.program(_placed(fours)), [x, start, updates, y], push)
        # y may overwrite x: an invocation writes the words of x that it has read
        span = min(count, rows)
        b.may_overwrite([(y, x)], push | {"count": every * span * many, "span": span})
    return y


def _kept(k: KernelWriter, buffer: int, place: Number, value: Number) -> None:
    k.store(buffer, place, is_nan(value).where(np.nan, value) if value.kind == "f" else value)


def _number(k: KernelWriter, buffer: int, dtype: str, place: Number) -> Number:
    return element(k, buffer, dtype, place)


@functools.lru_cache(64)
def _running(how: str, exclusive: bool, backwards: bool, dtype: str, soft: bool) -> Written:
    kind: Kind = KINDS[dtype]

    def write(k: KernelWriter, row: Number) -> None:
        length, inner, join = k.word(2), k.word(3), joined(JOINS[how], kind)
        above = row.divided(inner)
        first = above * (length * inner) + (row - above * inner)

        def turn(c: Number, state: tuple[Number, ...]) -> tuple[Number, ...]:
            at = first + (length - 1 - c if backwards else c) * inner
            after = join(state[0], _number(k, 0, dtype, at))
            _kept(k, 1, at, state[0] if exclusive else after)
            return (after,)

        k.loop(k.constant(0, "u"), length, k.constant(1, "u"), (k.constant(IDENTITY[how], kind),), turn)

    name = f"running.{how}.{dtype}" + ".exclusive" * exclusive + ".backwards" * backwards
    return per_result(name, "x", "y", ("length", "inner"), soft, "length", write)


@functools.lru_cache(4)
def _reduced(how: str) -> Written:
    def write(k: KernelWriter, row: Number) -> None:
        length, one = k.word(2), k.constant(1, "u")
        first = row * length
        (total,) = k.loop(
            one, length, one, (k.load(0, first).i,), _joining(how, lambda c: k.load(0, first + c))
        )
        k.store(1, row, total)

    return per_result(f"reduced.{how}", "x", "y", ("length",), False, "length", write)


@functools.lru_cache(4)
def _reduced_together(how: str) -> Written:
    """Return the kernel for rows of at least LOCAL values: a workgroup reduces a row. int32 sums and
    products wrap, so their order does not matter."""

    def module() -> bytes:
        k = KernelWriter((False, True), 3, LOCAL, False, LOCAL)
        row, lane, length, local = k.workgroup(), k.lane(), k.word(2), k.constant(LOCAL, "u")
        first, one = row * length, k.constant(1, "u")
        state = (k.load(0, first + lane).i,)
        (own,) = k.loop(lane + LOCAL, length, local, state, _joining(how, lambda c: k.load(0, first + c)))
        k.keep(lane, own.f)
        k.barrier()
        with k.when(lane.equals(0)):
            (total,) = k.loop(one, local, one, (own,), _joining(how, k.exchange))
            k.store(1, row, total)
        return k.finish()

    return Written(
        "lines__row", f"lines__row:reduced.{how}", "rows of int32 values, one result for each workgroup",
        (Binding(0, "x", "read", "uint"), Binding(1, "y", "write", "uint")),
        tuple(PushConstant(each, "uint", 4 * i) for i, each in enumerate(("first_group", "count", "length"))),
        LOCAL, Expression("count"), 4 * LOCAL, module, f"length // {LOCAL} + {LOCAL}",
    )  # fmt: skip


def _joining(how: str, value: Callable[[Number], Number]) -> Callable[..., tuple[Number, ...]]:
    """Return the body of a loop over c that reduces int32 values: it combines the loop's state with
    value(c)."""
    join = joined(REDUCTIONS[how], "i")
    return lambda c, state: (join(state[0], value(c).i),)


@functools.lru_cache(16)
def _largest(from_above: bool, dtype: str) -> Written:
    def key(k: KernelWriter, place: Number) -> Number:
        word = k.load(0, place)
        return order(word.f) if dtype == "float32" else word.i

    def write(k: KernelWriter, i: Number) -> None:
        length, most = k.word(2), k.word(3)
        line = i.divided(length)
        own, first, mine = i - line * length, line * length, key(k, i)

        def turn(c: Number, state: tuple[Number, ...]) -> tuple[Number, ...]:
            other = key(k, first + c)
            ahead = mine < other if from_above else other < mine
            ahead = ahead | (other.equals(mine) & (c < own))
            return (ahead.where(state[0] + 1, state[0]),)

        (rank,) = k.loop(k.constant(0, "u"), length, k.constant(1, "u"), (k.constant(0, "u"),), turn)
        with k.when(rank < most):
            k.store(1, line * most + rank, k.load(0, i))
            k.store(2, line * most + rank, own)

    name = f"topk.{dtype}" + ".smallest" * (not from_above)
    return per_result(name, "x", "y places", ("length", "k"), False, "length", write)


@functools.lru_cache(32)
def _scattered(reduction: str, dtype: str, soft: bool) -> Written:
    kind: Kind = KINDS[dtype]

    def write(k: KernelWriter, i: Number) -> None:
        inner = k.word(3)
        row = i.divided(inner)
        column = i - row * inner
        first: Number = k.load(0, i) if reduction == "none" else _number(k, 0, dtype, i)

        def turn(c: Number, state: tuple[Number, ...]) -> tuple[Number, ...]:
            here = k.load(1, c).equals(row)
            place = c * inner + column
            if reduction == "none":
                return (here.where(k.load(2, place), state[0]),)
            after = joined(REDUCTIONS[reduction], kind)(state[0], _number(k, 2, dtype, place))
            return (here.where(after, state[0]),)

        (found,) = k.loop(k.constant(0, "u"), k.word(2), k.constant(1, "u"), (first,), turn)
        _kept(k, 3, i, found)

    return per_result(
        f"scatter.{reduction}.{dtype}", "x ids updates", "y", ("length", "inner"), soft, "length", write
    )


@functools.lru_cache(2)
def _placed(fours: bool) -> Written:
    """Return the kernel that replaces consecutive rows. An invocation writes a word, or (*fours*) a vector
    of four words."""

    def copy(k: KernelWriter, source: int, place: Number, i: Number) -> None:
        if fours:
            k.store_four(3, i, k.load_four(source, place))
        else:
            k.store(3, i, k.load(source, place))

    def write(k: KernelWriter, i: Number) -> None:
        inner, rows, lines, count, span = (k.word(n) for n in (2, 3, 4, 5, 6))
        above = i.divided(inner)
        line = above.divided(span)
        place, column = above - line * span, i - above * inner  # place: the row's distance from start
        row = k.load(1, line.divided(lines)) + place
        row = (row < rows).where(row, row - rows)
        at, new = (line * rows + row) * inner + column, place < count
        with k.when(new):
            copy(k, 2, (line * count + place) * inner + column, at)
        with k.when(~new):
            copy(k, 0, at, at)

    words, vectors = ("inner", "rows", "lines", "updates", "span"), frozenset({0, 2, 3} if fours else ())
    name = "placed" + ".fours" * fours
    return per_result(name, "x start updates", "y", words, False, "0", write, vectors)


def per_result(
    name: str, inputs: str, results: str, words: tuple[str, ...], soft: bool, rounds: str,
    write: Callable[[KernelWriter, Number], None], fours: frozenset[int] = frozenset(),
) -> Written:  # fmt: skip
    """Return a kernel with one invocation for each of ``count`` results.

    - *write* generates the code of an invocation.
    - inputs, results: the names of the buffers.
    - words: the names of the push constants after ``count``.
    - fours: the indices of the buffers of vectors of four words."""
    ways = [*((each, "read") for each in inputs.split()), *((each, "write") for each in results.split())]

    def module() -> bytes:
        k = KernelWriter(tuple(way == "write" for _, way in ways), 2 + len(words), LOCAL, soft, fours=fours)
        i = k.workgroup() * LOCAL + k.lane()
        with k.when(i < k.word(1)):
            write(k, i)
        return k.finish()

    push = ("first_group", "count", *words)
    return Written(
        "lines__element", f"lines__element:{name}", "rows of numbers, one result for each invocation",
        tuple(Binding(i, each, way, "uint") for i, (each, way) in enumerate(ways)),
        tuple(PushConstant(each, "uint", 4 * i) for i, each in enumerate(push)),
        LOCAL, Expression(f"(count + {LOCAL - 1}) // {LOCAL}"), 0, module, rounds,
    )  # fmt: skip
