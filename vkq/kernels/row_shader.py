"""Writes shaders for functions of rows (`vkq.numerics.rows`). Several invocations of a workgroup share a row,
whose elements may be strided. The same dispatch may apply a chain of operators to the results and quantize
them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..layout.extent import BLOCKED
from ..numerics.bytes import Quantizer, dequantized
from ..numerics.rows import FUNCTIONS, IDENTITY, MOST_LANES, RUN, Got, finished, gathered, lane_result
from ..numerics.steps import Number, flushed, is_nan
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .chain_shader import element
from .row_form import LIKE, ONE, RESULT, RowForm
from .row_lanes import RowLanes

WORDS = (
    ("first_group", "uint"), ("rows", "uint"), ("length", "uint"), ("inner", "uint"), ("count", "float"),
    ("x_scale", "float"), ("x_zero", "int"), ("y_scale", "float"), ("y_reciprocal", "float"),
    ("y_zero", "int"),
)  # fmt: skip
Operands = Sequence[Sequence[Number]]
SIGNS = 0x80808080
PLACE = {word: i for i, (word, _) in enumerate(WORDS)}


@functools.lru_cache(1024)
def written(form: RowForm) -> Written:
    """Return the shader for the function of rows and all other properties of a form."""
    push = tuple(PushConstant(word, kind, 4 * i) for i, (word, kind) in enumerate(WORDS))
    name, lanes, y = form.name, form.lanes, form.y_buffer
    bindings = tuple(Binding(i, "x" if i == 0 else f"x{i}", "read", "uint") for i in range(y))
    bindings += (Binding(y, "y", "write", "uint"),)
    each = FUNCTIONS[name].each is not None
    loops = int(form.y_bytes) if form.ahead else len(FUNCTIONS[name].passes) + each
    ops = [name.lower(), *(link.op.lower() for link in (form.chain.links if form.chain else ())[:6])]
    ops = ["q8"] * form.x_bytes + ops + ["q8"] * form.y_bytes + ["dequantize"] * form.y_real
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
    k.flushes = not form.normal
    function = FUNCTIONS[form.name]
    ahead = [(run, r.numbers(run)) for run in r.ahead()]
    got: list[Number] = []
    for each_pass in function.passes:
        got.append(_pass(r, ahead, *each_pass, got))
    each = function.each
    if each is None:
        result = finished(got)
        with k.when(r.inside & r.own.equals(0)):
            k.store(1, r.row, is_nan(result).where(np.nan, result))
        return k.finish()
    _store_each(r, ahead, lambda numbers: [each(number, got) for number in numbers])
    return k.finish()


def _store_each(
    r: _Row, ahead: list[tuple[_Run, list[Number]]], results: Callable[[Sequence[Number]], list[Number]]
) -> None:
    """Store the results of all runs. Load the operands of a run before the results of the previous run are
    computed, to hide the latency. The second run is an exception: its operands are loaded after the first run
    is computed, because the registers of the first run are not free earlier."""
    right: list[Number] = []
    operands: Operands = []
    for i, (run, numbers) in enumerate(ahead if not r.form.divides else ()):
        now = operands or r.operands(run)
        operands = r.operands(ahead[i + 1][0]) if 0 < i < len(ahead) - 1 else []
        if r.form.y_bytes:
            right.append(r.quick(run, results(numbers), now))
        else:
            r.keep(run, results(numbers), now)
    if r.form.y_bytes:
        r.keep_words(right, results)
    elif not ahead:
        r.each_run((), lambda run, s: r.keep(run, results(r.numbers(run)), r.operands(run)))


def _pass(r: _Row, ahead: list[tuple[_Run, list[Number]]], op: str, f: Any, then: Any, got: Got) -> Number:
    """Write one pass over the row: reduce f(element, *got*) over all elements by *op*, and return *then* of
    the reduced value. got: the results of earlier passes. ahead: the runs that are already loaded; if empty,
    the pass loads all runs."""
    k = r.k

    def add(run: _Run, numbers: list[Number], state: Any) -> Any:
        for number, there in zip(numbers, run.there, strict=True):
            after = gathered(op, state, f(number, got))
            if there is not None:
                after = there.where(after[0], state[0]), there.where(after[1], state[1])
            state = after
        return state

    state: Any = (k.constant(IDENTITY[op], "f"), k.constant(0.0, "f"))
    for run, numbers in ahead:
        state = add(run, numbers, state)
    if not ahead:
        state = r.each_run(state, lambda run, state: add(run, r.numbers(run), state))

    def change(value: Number) -> Number:
        with k.flushing(True):
            found: Number = then(value, {"epsilon": r.form.epsilon, "count": r.word("count").f})
        return found

    return r.lanes.joined(op, lane_result(op, state), change)


@dataclasses.dataclass(frozen=True)
class _Run:
    """Four neighbouring elements of a row. ``index``: the number of the run in the row, ``low + turn *
    lanes``. ``there``: for each element, whether it is inside the row (None: always)."""

    low: Number
    turn: int
    index: Number
    there: Sequence[Number | None]


class _Row:
    """The writer of code that loads and stores the row of an invocation. ``at``: the index of the row in
    x."""

    def __init__(self, k: KernelWriter, form: RowForm):
        self.k, self.form = k, form
        # A run is four elements of a row. In each layout of 8-bit rows, a block of 4 rows x 4 runs is
        # contiguous in memory. Up to four neighbouring invocations read one row, and the next ones read the
        # next row, so that neighbouring invocations read the same block.
        self.lanes = RowLanes(k, form.lanes, 1 if form.strided else min(4, form.lanes))
        self.own, self.row = self.lanes.own, k.workgroup() * self.lanes.rows + self.lanes.row
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
        """Return the runs that the invocation loads once. All are loaded before the first is used, so that
        their latencies overlap."""
        return [self._run(self.own, turn, turn < self.form.whole) for turn in range(self.form.ahead)]

    def each_run(self, state: Any, turn: Callable[[_Run, Any], Any], end: Number | None = None) -> Any:
        """Loop over the invocation's runs with indices below *end* (None: all runs). *turn* returns the next
        state from a run and the current state. Return the final state."""
        step = self.k.constant(self.form.lanes, "u")
        run = functools.partial(self._run, turn=0, inside=self.form.fours)
        return self.k.loop(self.own, end or self.runs, step, state, lambda c, s: turn(run(c), s))

    def _run(self, low: Number, turn: int, inside: bool) -> _Run:
        index = low + turn * self.form.lanes if turn else low
        if inside:
            return _Run(low, turn, index, [None] * RUN)
        if not self.form.fours:
            return _Run(low, turn, index, [(index << 2) + j < self.length for j in range(RUN)])
        there = index < self.runs
        index = there.where(index, self.own)  # a run beyond the row loads the lane's first run
        return _Run(index, 0, index, [there] * RUN)

    def _places(self, run: _Run) -> list[Number]:
        """Return the positions of a run's elements in the row, or 0 for elements beyond the row."""
        places = [(run.index << 2) + j for j in range(RUN)]
        if self.form.fours:
            return places
        pairs = zip(places, run.there, strict=True)
        return [c if there is None else there.where(c, 0) for c, there in pairs]

    def numbers(self, run: _Run) -> list[Number]:
        """Load the elements of a run as float32."""
        if self.form.x_bytes:
            word = self.k.load(0, self._at_word(self.form.x, run))
            scale, zero = self.word("x_scale").f, self.word("x_zero").i
            return [dequantized((word.i << (24 - 8 * j)) >> 24, scale, zero) for j in range(RUN)]
        if self.form.fours:
            return [flushed(word.f) for word in self.k.load_four(0, (self.first >> 2) + run.index)]
        return [flushed(self.k.load(0, self.first + c * self.inner).f) for c in self._places(run)]

    def keep(self, run: _Run, results: Sequence[Number], operands: Operands) -> tuple[()]:
        """Apply the chain to the results of a run, and store them as float32."""
        k, y = self.k, self.form.y_buffer
        found = [is_nan(each).where(np.nan, each) for each in self._through(results, operands)]
        if self.form.fours:
            with k.when(self._stores(run.there[0])):
                k.store_four(y, (self.first >> 2) + run.index, found)
            return ()
        for each, c, there in zip(found, self._places(run), run.there, strict=True):
            with k.when(self._stores(there)):
                k.store(y, self.first + c * self.inner, each)
        return ()

    def quick(self, run: _Run, results: Sequence[Number], operands: Operands) -> Number:
        """Quantize the results of a run (four elements) in few steps, and store them as one word. Return a
        flag: False if the word may be wrong, so that `keep_words` must compute it again."""
        found = [self.quantized.quick(result) for result in self._through(results, operands)]
        self._store_word(run, self._stores(run.there[0]), lambda: [value for value, _ in found])
        return functools.reduce(lambda a, b: a & b, [right for _, right in found])

    def keep_words(
        self, right: Sequence[Number], results: Callable[[Sequence[Number]], list[Number]]
    ) -> None:
        """Compute and store the words of the runs whose flag in *right* is False. If *right* is empty, do so
        for all runs."""
        k, wrong, shift = self.k, self.own.of(0), self.form.lanes.bit_length() - 1
        for turn, each in enumerate(right):
            wrong = wrong | each.where(0, 1 << turn, "u")

        def again(run: _Run, state: tuple[()]) -> tuple[()]:
            stores = self.inside & ~((wrong >> (run.index >> shift)) & 1).equals(0) if right else self.inside
            with k.when(stores):
                found = self._through(results(self.numbers(run)), self.operands(run))
                self._store_word(run, self.inside, lambda: [self.quantized(value) for value in found])
            return ()

        self.each_run((), again, wrong.equals(0).where(0, self.runs) if right else self.runs)

    def _store_word(self, run: _Run, stores: Number, values: Callable[[], list[Number]]) -> None:
        """If *stores* is true, store four int32 values in [-128, 127]: dequantized if the form has *y_real*,
        else as one word."""
        with self.k.when(stores):
            if self.form.y_real:
                scale, zero = self.word("y_scale").f, self.word("y_zero").i
                found = [dequantized(value, scale, zero) for value in values()]
                return self.k.store_four(self.form.y_buffer, (self.first >> 2) + run.index, found)
            word = functools.reduce(lambda word, value: (word << 8) + value, reversed(values()))
            word = (word.u + SIGNS) ^ SIGNS  # undo the borrows of negative bytes
            self.k.store(self.form.y_buffer, self._at_word(self.form.y, run), word)

    def _stores(self, there: Number | None) -> Number:
        return self.inside if there is None else self.inside & there

    def _at_word(self, layout: str, run: _Run) -> Number:
        """Return the index of the word of a run of an 8-bit row in this layout. Rows in MATRIX have a
        multiple of four elements."""
        if layout == BLOCKED:
            low, turns = (run.low, run.turn) if self.form.lanes % 4 == 0 else (run.index, 0)
            found = (((low >> 2) * self.rows + self.at) << 2) + (low & 3)
            return found + self.rows * (turns * self.form.lanes) if turns else found
        above = (((self.at >> 2) * self.runs + run.low) << 2) + (self.at & 3)
        return above + 4 * run.turn * self.form.lanes if run.turn else above

    def operands(self, run: _Run) -> Operands:
        """Load all operands of the chain except the function's result, for the elements of a run."""
        chain, buffers = self.form.chain, iter(range(1, self.form.y_buffer))
        pairs = zip(self.form.operands, chain.inputs if chain else (), strict=True)
        with self.k.flushing(self.form.chain_flushes):
            return [self._operand(next(buffers), dtype, way, run) for way, dtype in pairs if way != RESULT]

    def _through(self, results: Sequence[Number], operands: Operands) -> Sequence[Number]:
        """Return the results of a run after the chain, or unchanged if there is no chain."""
        chain, others = self.form.chain, iter(operands)
        if chain is None:
            return results
        inputs = [results if way == RESULT else next(others) for way in self.form.operands]
        with self.k.flushing(self.form.chain_flushes):
            return [chain.values(each)[0] for each in zip(*inputs, strict=True)]

    def _operand(self, buffer: int, dtype: str, way: int, run: _Run) -> Sequence[Number]:
        """Load one operand of the chain for each element of a run. way: the kind of the operand (ONE, PLACES
        or LIKE of `row_form`)."""
        k, first = self.k, self.first if way == LIKE else self.first.of(0)
        if way == ONE:
            return [element(k, buffer, dtype, first)] * RUN
        if buffer in self.form.vectors:
            return [flushed(word.f) for word in k.load_four(buffer, (first >> 2) + run.index)]
        return [
            element(k, buffer, dtype, first + (c * self.inner if way == LIKE else c))
            for c in self._places(run)
        ]
