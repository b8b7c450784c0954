"""Write shaders for functions of rows (`vkq.numerics.rows`). Several invocations of a workgroup share a
row, whose elements may be strided. The dispatch may also compute x by a chain of operators (the prologue),
apply another chain to the results, and quantize the results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..numerics.bytes import Quantizer, dequantized
from ..numerics.elementary import to_halves
from ..numerics.rows import FUNCTIONS, IDENTITY, MOST_LANES, RUN, Got, finished, gathered, lane_result
from ..numerics.steps import Number, is_nan
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .chain_shader import stored
from .row_form import RESULT, RowForm
from .row_runs import WORDS, Operands, RowRun, RowRuns

SIGNS = 0x80808080


@functools.lru_cache(1024)
def written(form: RowForm) -> Written:
    """Return the shader that is generated for a form."""
    push = tuple(PushConstant(word, kind, 4 * i) for i, (word, kind) in enumerate(WORDS))
    name, lanes, y = form.name, form.lanes, form.y_buffer
    bindings = tuple(Binding(i, "x" if i == 0 else f"x{i}", "read", "uint") for i in range(y))
    results = ("y", "sum")[: len(form.stores)]
    bindings += tuple(Binding(y + i, result, "write", "uint") for i, result in enumerate(results))
    each = FUNCTIONS[name].each is not None
    loops = int(form.y_bytes) if form.ahead else len(FUNCTIONS[name].passes) + each
    before, after = (chain.links[:6] if chain else () for chain in (form.prologue, form.chain))
    ops = [link.op.lower() for link in before] + [name.lower()] + [link.op.lower() for link in after]
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
    buffers = (*(False,) * form.y_buffer, *(True,) * len(form.stores))
    k = KernelWriter(buffers, len(WORDS), MOST_LANES, form.soft, 2 * MOST_LANES, form.vectors, form.converts)
    r = _Row(k, form)
    k.flushes = not form.normal
    function = FUNCTIONS[form.name]
    loaded = [(run, r.values(run)) for run in r.ahead()]
    for run, values in loaded:
        r.keep_second(run, values)
    ahead = [(run, [x for x, *_ in values]) for run, values in loaded]
    got: list[Number] = []
    for each_pass in function.passes:
        got.append(_pass(r, ahead, *each_pass, got))
    each = function.each
    if each is None:
        result = finished(got)
        with k.when(r.inside & r.own.equals(0)):
            k.store(form.y_buffer, r.row, is_nan(result).where(np.nan, result))
        return k.finish()
    _store_each(r, ahead, lambda numbers: [each(number, got) for number in numbers])
    return k.finish()


def _store_each(
    r: _Row, ahead: list[tuple[RowRun, list[Number]]], results: Callable[[Sequence[Number]], list[Number]]
) -> None:
    """Store the results of all runs. To hide the latency, the operands of a run are loaded before the
    results of the previous run are computed. The operands of the second run are loaded after the first run
    is computed, which needs the registers until then."""
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


def _pass(r: _Row, ahead: list[tuple[RowRun, list[Number]]], op: str, f: Any, then: Any, got: Got) -> Number:
    """Write one pass over the row: reduce f(element, *got*) over all elements by *op*. Return *then* of the
    reduced value. *got*: the results of earlier passes. *ahead*: the loaded runs; if empty, the pass loads
    all runs."""
    k = r.k

    def add(run: RowRun, numbers: list[Number], state: Any) -> Any:
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
        load = r.numbers if got else r.first_numbers
        state = r.each_run(state, lambda run, state: add(run, load(run), state))

    def change(value: Number) -> Number:
        with k.flushing(True):
            found: Number = then(value, {"epsilon": r.form.epsilon, "count": r.word("count").f})
        return found

    return r.lanes.joined(op, lane_result(op, state), change)


class _Row(RowRuns):
    """The generator of the code that loads and stores the row of an invocation."""

    def __init__(self, k: KernelWriter, form: RowForm):
        super().__init__(k, form)
        if form.y_bytes:
            scale, inverse, zero = (self.word(f"y_{name}") for name in ("scale", "reciprocal", "zero"))
            self.quantized = Quantizer(scale.f, inverse.f, zero.i, form.divides)

    def first_numbers(self, run: RowRun) -> list[Number]:
        """Return the elements of a run. Store the second result of the prologue, if there is one."""
        values = self.values(run)
        self.keep_second(run, values)
        return [x for x, *_ in values]

    def keep_second(self, run: RowRun, values: Sequence[Sequence[Number]]) -> None:
        """Store the second result of the prologue, if there is one."""
        if len(self.form.stores) > 1:
            second = [value for _, value in values]
            self._store(self.form.y_buffer + 1, self.form.stores[1], run, second)

    def keep(self, run: RowRun, results: Sequence[Number], operands: Operands) -> tuple[()]:
        """Apply the chain to the results of a run. Store them as floats."""
        self._store(self.form.y_buffer, self.form.stores[0], run, self._through(results, operands))
        return ()

    def _store(self, buffer: int, dtype: str, run: RowRun, values: Sequence[Number]) -> None:
        """Store a run of floats. Rows of float16 results must be contiguous (`RowForm.fours`)."""
        k = self.k
        if not self.form.fours:
            for value, c, there in zip(values, self.places(run), run.there, strict=True):
                with k.when(self._stores(there)):
                    k.store(buffer, self.first + c * self.inner, stored(dtype, value))
            return
        with k.when(self._stores(run.there[0])):
            if dtype == "float16":
                at = (self.first >> 1) + (run.index << 1)
                for j, (low, high) in enumerate(zip(values[::2], values[1::2], strict=True)):
                    k.store(buffer, at + j, to_halves(low, high))
            else:
                k.store_four(buffer, (self.first >> 2) + run.index, [stored(dtype, x) for x in values])

    def quick(self, run: RowRun, results: Sequence[Number], operands: Operands) -> Number:
        """Quantize the results of a run (four elements) in few steps, and store them as one word. Return a
        flag: False if the word may be wrong, so that `keep_words` must compute it again."""
        found = [self.quantized.quick(result) for result in self._through(results, operands)]
        self._store_word(run, self._stores(run.there[0]), lambda: [value for value, _ in found])
        return functools.reduce(lambda a, b: a & b, [right for _, right in found])

    def keep_words(
        self, right: Sequence[Number], results: Callable[[Sequence[Number]], list[Number]]
    ) -> None:
        """Compute and store the words of the runs whose flag in *right* is False, or of all runs if *right*
        is empty."""
        k, wrong, shift = self.k, self.own.of(0), self.form.lanes.bit_length() - 1
        for turn, each in enumerate(right):
            wrong = wrong | each.where(0, 1 << turn, "u")

        def again(run: RowRun, state: tuple[()]) -> tuple[()]:
            stores = self.inside & ~((wrong >> (run.index >> shift)) & 1).equals(0) if right else self.inside
            with k.when(stores):
                found = self._through(results(self.numbers(run)), self.operands(run))
                self._store_word(run, self.inside, lambda: [self.quantized(value) for value in found])
            return ()

        self.each_run((), again, wrong.equals(0).where(0, self.runs) if right else self.runs)

    def _store_word(self, run: RowRun, stores: Number, values: Callable[[], list[Number]]) -> None:
        """Store four int32 values in [-128, 127] if *stores* is true at run time: dequantized if the form
        has *y_real*, else as one word."""
        with self.k.when(stores):
            if self.form.y_real:
                scale, zero = self.word("y_scale").f, self.word("y_zero").i
                found = [dequantized(value, scale, zero) for value in values()]
                return self.k.store_four(self.form.y_buffer, (self.first >> 2) + run.index, found)
            word = functools.reduce(lambda word, value: (word << 8) + value, reversed(values()))
            word = (word.u + SIGNS) ^ SIGNS  # undo the borrows of negative bytes
            self.k.store(self.form.y_buffer, self.at_word(self.form.y, run), word)

    def _stores(self, there: Number | None) -> Number:
        return self.inside if there is None else self.inside & there

    def _through(self, results: Sequence[Number], operands: Operands) -> Sequence[Number]:
        """Return the results of a run after the chain, if there is one."""
        chain, others = self.form.chain, iter(operands)
        if chain is None:
            return results
        inputs = [results if way == RESULT else next(others) for way in self.form.operands]
        with self.k.flushing(self.form.chain_flushes):
            return [chain.values(each)[0] for each in zip(*inputs, strict=True)]
