"""The writer of shaders for functions of rows (`vkq.numerics.rows`). Several invocations of a workgroup share
a row, whose elements may be strided. A chain of operators and the quantization of the result may follow in
the same dispatch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..layout.extent import BLOCKED
from ..numerics.bytes import Quantizer, dequantized
from ..numerics.rows import FUNCTIONS, IDENTITY, JOIN, MOST_LANES, RUN, finished, gathered, lane_result
from ..numerics.steps import Number, flushed, is_nan
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .chain_form import Chain
from .chain_shader import element

RESULT, ONE, PLACES, LIKE = range(4)
JOINED = 8  # most lanes whose values an invocation joins between two barriers
WORDS = (
    ("first_group", "uint"), ("rows", "uint"), ("length", "uint"), ("inner", "uint"), ("count", "float"),
    ("x_scale", "float"), ("x_zero", "int"), ("y_scale", "float"), ("y_reciprocal", "float"),
    ("y_zero", "int"),
)  # fmt: skip
PLACE = {word: i for i, (word, _) in enumerate(WORDS)}


@dataclasses.dataclass(frozen=True)
class RowForm:
    """The properties that a kernel depends on; scales and zero points are push constants. *lanes*: how many
    invocations share a row. *ahead*: how many runs each invocation loads only once (0: it loads them in each
    pass); the first *whole* of them are inside the row. *strided*: the elements of a row are not neighbours.
    *fours*: they are, and fill whole runs. *x_bytes*, *y_bytes*: whether x and y have 8 bits. *divides*: see
    `Quantizer`. *soft*: the device needs float arithmetic in software."""

    name: str
    lanes: int
    ahead: int
    whole: int
    strided: bool
    fours: bool
    epsilon: float
    chain: Chain | None
    operands: tuple[int, ...]
    x_bytes: bool
    y_bytes: bool
    divides: bool
    x: str
    y: str
    soft: bool

    @property
    def y_buffer(self) -> int:
        return 1 + sum(operand != RESULT for operand in self.operands)

    @property
    def vectors(self) -> frozenset[int]:
        """The buffers of float32 numbers that the kernel reads and writes as vectors of four."""
        ways = zip(self.operands, self.chain.inputs if self.chain else (), strict=True)
        others = [way != ONE and dtype == "float32" for way, dtype in ways if way != RESULT]
        y = not self.y_bytes and FUNCTIONS[self.name].each is not None
        return frozenset(i for i, four in enumerate((not self.x_bytes, *others, y)) if four and self.fours)


@functools.lru_cache(1024)
def written(form: RowForm) -> Written:
    """Return the shader of a function of rows."""
    push = tuple(PushConstant(word, kind, 4 * i) for i, (word, kind) in enumerate(WORDS))
    name, lanes, y = form.name, form.lanes, form.y_buffer
    bindings = tuple(Binding(i, "x" if i == 0 else f"x{i}", "read", "uint") for i in range(y))
    bindings += (Binding(y, "y", "write", "uint"),)
    each = FUNCTIONS[name].each is not None
    loops = 0 if form.ahead else len(FUNCTIONS[name].passes) + each
    ops = [name.lower(), *(link.op.lower() for link in (form.chain.links if form.chain else ())[:6])]
    ops = ["q8"] * form.x_bytes + ops + ["q8"] * form.y_bytes
    size = f"{lanes}x{form.ahead}" if form.ahead else f"{lanes}"
    return Written(
        "rows__group", f"rows__group:{'.'.join(ops)}.{size}", "a function of rows", bindings, push,
        MOST_LANES,
        Expression(f"(rows * {lanes} + {MOST_LANES - 1}) // {MOST_LANES}"), 2 * 4 * MOST_LANES,
        lambda: _module(form),
        f"{loops} * ((length + {lanes * RUN - 1}) // {lanes * RUN} + 1)" if loops else "0",
    )  # fmt: skip


def _module(form: RowForm) -> bytes:
    buffers = (*(False,) * form.y_buffer, True)
    k = KernelWriter(buffers, len(WORDS), MOST_LANES, form.soft, 2 * MOST_LANES, form.vectors)
    r = _Row(k, form)
    a = {"epsilon": form.epsilon, "count": r.word("count").f}
    function = FUNCTIONS[form.name]
    got: list[Number] = []
    ahead = [(run, r.numbers(run)) for run in r.ahead()]
    for op, f, then in function.passes:
        state: Any = (k.constant(IDENTITY[op], "f"), k.constant(0.0, "f"))

        def add(run: _Run, numbers: list[Number], state: Any, op: str = op, f: Any = f) -> Any:
            for number, there in zip(numbers, run.there, strict=True):
                after = gathered(op, state, f(number, got))
                if there is not None:
                    after = there.where(after[0], state[0]), there.where(after[1], state[1])
                state = after
            return state

        for run, numbers in ahead:
            state = add(run, numbers, state)
        if not ahead:
            state = r.each_run(state, lambda run, s, add=add: add(run, r.numbers(run), s))  # type: ignore[misc]
        change = functools.partial(then, a=a)  # type: ignore[call-arg]
        got.append(r.joined(op, lane_result(op, state), change))
    each = function.each
    if each is None:
        result = finished(got)
        with k.when(r.inside & r.own.equals(0)):
            k.store(1, r.row, is_nan(result).where(np.nan, result))
        return k.finish()
    for run, numbers in ahead:
        r.keep(run, [each(number, got) for number in numbers])
    if not ahead:
        r.each_run((), lambda run, s: r.keep(run, [each(number, got) for number in r.numbers(run)]))
    return k.finish()


@dataclasses.dataclass(frozen=True)
class _Run:
    """Four neighbouring elements of a row: the run's number, as ``low + turn * lanes``, the positions of the
    elements, and for each whether it is inside the row (None: it is). Positions outside are replaced."""

    low: Number
    turn: int
    index: Number
    places: Sequence[Number]
    there: Sequence[Number | None]


class _Row:
    """The writer of code that loads and stores the row of an invocation, ``at``."""

    def __init__(self, k: KernelWriter, form: RowForm):
        self.k, self.form, self._half = k, form, 0
        self.lane, per = k.lane(), MOST_LANES // form.lanes
        # The lanes of four neighbouring runs are neighbours, then those of neighbouring rows: words of 8-bit
        # rows are in this order, in each layout.
        self._near = 1 if form.strided else min(4, form.lanes)
        near, high = self._near.bit_length() - 1, (self._near * per).bit_length() - 1
        self.own = (self.lane & (self._near - 1)) | ((self.lane >> high) << near)
        self.row = k.workgroup() * per + ((self.lane >> near) & (per - 1))
        self.rows, self.length, self.inner = (self.word(name) for name in ("rows", "length", "inner"))
        self.runs = (self.length + (RUN - 1)) >> 2
        if form.y_bytes:
            scale, inverse, zero = (self.word(f"y_{name}") for name in ("scale", "reciprocal", "zero"))
            self.quantized = Quantizer(scale.f, inverse.f, zero.i, form.divides)
        self.inside, last = self.row < self.rows, self.rows - 1
        # Invocations beyond the last row compute the last row and store nothing.
        self.at = self.inside.where(self.row, last)
        self.first = self.at * self.length
        if form.strided:
            above = self.at.divided(self.inner)
            self.first = above * (self.inner * self.length) + (self.at - above * self.inner)

    def word(self, name: str) -> Number:
        return self.k.word(PLACE[name])

    def ahead(self) -> list[_Run]:
        """Return the runs that the invocation loads once. A device loads all of them in the time of one
        load."""
        return [self._run(self.own, turn, turn < self.form.whole) for turn in range(self.form.ahead)]

    def each_run(self, state: Any, turn: Callable[[_Run, Any], Any]) -> Any:
        """Return the state after a loop over the runs of the invocation."""
        step = self.k.constant(self.form.lanes, "u")
        return self.k.loop(self.own, self.runs, step, state, lambda c, s: turn(self._run(c, 0, False), s))

    def _run(self, low: Number, turn: int, whole: bool) -> _Run:
        """Return a run. *whole*: it is inside the row."""
        index = low + turn * self.form.lanes if turn else low
        there: list[Number | None] = [None] * RUN
        if whole or (self.form.fours and not self.form.ahead):
            return _Run(low, turn, index, [(index << 2) + j for j in range(RUN)], there)
        if self.form.fours:
            there = [index < self.runs] * RUN
            index = (index < self.runs).where(index, self.own)
            return _Run(index, 0, index, [(index << 2) + j for j in range(RUN)], there)
        places = [(index << 2) + j for j in range(RUN)]
        found = [c < self.length for c in places]
        return _Run(low, turn, index, [t.where(c, 0) for t, c in zip(found, places, strict=True)], found)

    def numbers(self, run: _Run) -> list[Number]:
        """Load the elements of a run."""
        if self.form.x_bytes:
            word = self.k.load(0, self._at_word(self.form.x, run))
            scale, zero = self.word("x_scale").f, self.word("x_zero").i
            return [dequantized((word.i << (24 - 8 * j)) >> 24, scale, zero) for j in range(RUN)]
        if self.form.fours:
            return [flushed(word.f) for word in self.k.load_four(0, (self.first >> 2) + run.index)]
        return [flushed(self.k.load(0, self.first + c * self.inner).f) for c in run.places]

    def keep(self, run: _Run, results: Sequence[Number]) -> tuple[()]:
        """Store the results of a run."""
        k, y, found = self.k, self.form.y_buffer, self._through(run, results)
        if self.form.y_bytes:
            return self._keep_word(run, found)
        found = [is_nan(each).where(np.nan, each) for each in found]
        if self.form.fours:
            with k.when(self._stores(run.there[0])):
                k.store_four(y, (self.first >> 2) + run.index, found)
            return ()
        for each, c, there in zip(found, run.places, run.there, strict=True):
            with k.when(self._stores(there)):
                k.store(y, self.first + c * self.inner, each)
        return ()

    def _keep_word(self, run: _Run, results: Sequence[Number]) -> tuple[()]:
        """Store four neighbouring results, quantized, as one word."""
        word = run.low.of(0, "u")
        for j, result in enumerate(results):
            word = word | ((self.quantized(result).u & 0xFF) << (8 * j))
        with self.k.when(self._stores(run.there[0])):
            self.k.store(self.form.y_buffer, self._at_word(self.form.y, run), word)
        return ()

    def _stores(self, there: Number | None) -> Number:
        return self.inside if there is None else self.inside & there

    def _at_word(self, layout: str, run: _Run) -> Number:
        """Return the index of the word that holds a run of an 8-bit row. The length of MATRIX rows is a
        multiple of four."""
        if layout == BLOCKED:
            low, turns = (run.low, run.turn) if self.form.lanes % 4 == 0 else (run.index, 0)
            found = (((low >> 2) * self.rows + self.at) << 2) + (low & 3)
            return found + self.rows * (turns * self.form.lanes) if turns else found
        above = (((self.at >> 2) * self.runs + run.low) << 2) + (self.at & 3)
        return above + 4 * run.turn * self.form.lanes if run.turn else above

    def _through(self, run: _Run, results: Sequence[Number]) -> Sequence[Number]:
        """Return the chain applied to the results of a run, or the results if there is no chain."""
        chain, buffers = self.form.chain, iter(range(1, self.form.y_buffer))
        if chain is None:
            return results
        inputs = [
            results if way == RESULT else self._operand(next(buffers), dtype, way, run)
            for way, dtype in zip(self.form.operands, chain.inputs, strict=True)
        ]
        return [chain.values(each)[0] for each in zip(*inputs, strict=True)]

    def _operand(self, buffer: int, dtype: str, way: int, run: _Run) -> Sequence[Number]:
        """Load an operand of the chain for each element of a run."""
        k, first = self.k, self.first if way == LIKE else self.first.of(0)
        if way == ONE:
            return [element(k, buffer, dtype, first)] * RUN
        if buffer in self.form.vectors:
            return [flushed(word.f) for word in k.load_four(buffer, (first >> 2) + run.index)]
        return [element(k, buffer, dtype, first + (c * self.inner if way == LIKE else c)) for c in run.places]

    def joined(self, op: str, value: Number, then: Callable[[Number], Number]) -> Number:
        """Reduce the values of all invocations of a row, apply *then* once, and return the result to every
        invocation."""
        k, lanes = self.k, self.form.lanes
        if lanes == 1:
            return then(value)
        while lanes > JOINED:
            lanes //= JOINED
            self._send(value)
            value = self._join(op, lanes, JOINED)
        self._send(value)
        with k.when(self.own.equals(0)):
            k.keep(self._shared(1, 1), then(self._join(op, 1, lanes)))
        k.barrier()
        self._half ^= 1
        return k.exchange(self._shared(1))

    def _send(self, value: Number) -> None:
        """Store a value of each invocation in the other half of the shared memory, because slower invocations
        may still read this half."""
        self._half ^= 1
        self.k.keep(self.lane + MOST_LANES * self._half, value)
        self.k.barrier()

    def _join(self, op: str, lanes: int, count: int) -> Number:
        """Return what the lower half of the row's lanes would have, after adding the upper half repeatedly
        until *lanes* are left of *lanes* times *count*."""
        values = [self.k.exchange(self._shared(lanes, ahead=j * lanes)) for j in range(count)]
        while len(values) > 1:
            half = len(values) // 2
            values = [JOIN[op](a, b) for a, b in zip(values[:half], values[half:], strict=True)]
        return values[0]

    def _shared(self, lanes: int, other: int = 0, ahead: int = 0) -> Number:
        """Return the index in shared memory of the lane with this invocation's number modulo *lanes*, plus
        *ahead*, in the half last used or (1) the other one."""
        near, per = self._near, MOST_LANES // self.form.lanes
        kept = lanes * per - 1 if lanes >= near else (lanes - 1) | (per - 1) * near
        skipped = ahead % near + ahead // near * near * per
        return (self.lane & kept) + (skipped + MOST_LANES * (self._half ^ other))
