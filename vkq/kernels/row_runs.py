"""Load the elements of a row in runs of four, for the shaders of `vkq.kernels.row_shader`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..layout.extent import BLOCKED
from ..numerics.bytes import dequantized
from ..numerics.elementary import from_halves
from ..numerics.rows import RUN
from ..numerics.steps import Number, flushed
from ..shader.assembler import KernelWriter
from .chain_shader import element
from .row_form import LIKE, ONE, RESULT, RowForm
from .row_lanes import RowLanes

WORDS = (
    ("first_group", "uint"), ("rows", "uint"), ("length", "uint"), ("inner", "uint"), ("count", "float"),
    ("x_scale", "float"), ("x_zero", "int"), ("y_scale", "float"), ("y_reciprocal", "float"),
    ("y_zero", "int"),
)  # fmt: skip
PLACE = {word: i for i, (word, _) in enumerate(WORDS)}
Operands = Sequence[Sequence[Number]]


@dataclasses.dataclass(frozen=True)
class RowRun:
    """RUN neighbouring elements of a row."""

    low: Number
    turn: int
    index: Number  # the index of the run in the row: low + turn * lanes
    there: Sequence[Number | None]  # for each element, whether it is inside the row; None: always


class RowRuns:
    """The generator of the code that loads the row of an invocation. ``at``: the index of the row in x."""

    def __init__(self, k: KernelWriter, form: RowForm):
        self.k, self.form = k, form
        # A run is four elements of a row. In each layout of 8-bit rows, a block of 4 rows x 4 runs is
        # contiguous. Up to four neighbouring invocations read one row, and the next ones the next row. So
        # neighbouring invocations read the same block.
        self.lanes = RowLanes(k, form.lanes, 1 if form.strided else min(4, form.lanes))
        self.own, self.row = self.lanes.own, k.workgroup() * self.lanes.rows + self.lanes.row
        self.rows, self.length, self.inner = (self.word(name) for name in ("rows", "length", "inner"))
        self.runs = (self.length + (RUN - 1)) >> 2
        self.inside, last = self.row < self.rows, self.rows - 1
        # Invocations beyond the last row compute the last row, and store nothing.
        self.at = self.inside.where(self.row, last)
        self.first = self.at * self.length
        if form.strided:
            above = self.at.divided(self.inner)
            self.first = above * (self.inner * self.length) + (self.at - above * self.inner)

    def word(self, name: str) -> Number:
        return self.k.word(PLACE[name])

    def ahead(self) -> list[RowRun]:
        """Return the runs that the invocation loads only once. All of them are loaded before the first is
        used, so that the latencies of the loads overlap."""
        return [self._run(self.own, turn, turn < self.form.whole) for turn in range(self.form.ahead)]

    def each_run(self, state: Any, turn: Callable[[RowRun, Any], Any], end: Number | None = None) -> Any:
        """Loop over the invocation's runs with indices below *end* (None: all runs). *turn* returns the
        next state for a run and the current state. Return the final state."""
        step = self.k.constant(self.form.lanes, "u")
        run = functools.partial(self._run, turn=0, inside=self.form.fours)
        return self.k.loop(self.own, end or self.runs, step, state, lambda c, s: turn(run(c), s))

    def _run(self, low: Number, turn: int, inside: bool) -> RowRun:
        index = low + turn * self.form.lanes if turn else low
        if inside:
            return RowRun(low, turn, index, [None] * RUN)
        if not self.form.fours:
            return RowRun(low, turn, index, [(index << 2) + j < self.length for j in range(RUN)])
        there = index < self.runs
        index = there.where(index, self.own)  # a run beyond the row loads the lane's first run
        return RowRun(index, 0, index, [there] * RUN)

    def places(self, run: RowRun) -> list[Number]:
        """Return the positions of a run's elements in the row; 0 for elements beyond the row."""
        places = [(run.index << 2) + j for j in range(RUN)]
        if self.form.fours:
            return places
        pairs = zip(places, run.there, strict=True)
        return [c if there is None else there.where(c, 0) for c, there in pairs]

    def at_word(self, layout: str, run: RowRun) -> Number:
        """Return the index of the word that has a run of an 8-bit row in this layout. Rows in MATRIX have a
        multiple of four elements."""
        if layout == BLOCKED:
            low, turns = (run.low, run.turn) if self.form.lanes % 4 == 0 else (run.index, 0)
            found = (((low >> 2) * self.rows + self.at) << 2) + (low & 3)
            return found + self.rows * (turns * self.form.lanes) if turns else found
        above = (((self.at >> 2) * self.runs + run.low) << 2) + (self.at & 3)
        return above + 4 * run.turn * self.form.lanes if run.turn else above

    def numbers(self, run: RowRun) -> list[Number]:
        """Return the elements of a run as float32."""
        return [x for x, *_ in self.values(run)]

    def values(self, run: RowRun) -> list[list[Number]]:
        """Return a list for each element of a run: the element as float32, and the second result of the
        prologue if there is one."""
        chain = self.form.prologue
        if chain is not None:
            reads = enumerate(self.form.loads[: len(chain.inputs)])
            operands = [self._operand(buffer, dtype, way, run) for buffer, (dtype, way) in reads]
            return [chain.values(each) for each in zip(*operands, strict=True)]
        if self.form.x_bytes:
            word = self.k.load(0, self.at_word(self.form.x, run))
            scale, zero = self.word("x_scale").f, self.word("x_zero").i
            return [[dequantized((word.i << (24 - 8 * j)) >> 24, scale, zero)] for j in range(RUN)]
        return [[x] for x in self._operand(0, "float32", LIKE, run)]

    def operands(self, run: RowRun) -> Operands:
        """Load the operands of the chain for the elements of a run, without the row function's result."""
        own = sum(way != RESULT for way in self.form.operands)
        loads = list(enumerate(self.form.loads))[self.form.y_buffer - own :]
        with self.k.flushing(self.form.chain_flushes):
            return [self._operand(buffer, dtype, way, run) for buffer, (dtype, way) in loads]

    def _operand(self, buffer: int, dtype: str, way: int, run: RowRun) -> Sequence[Number]:
        """Load an operand for each element of a run. *way* (`row_form`): ONE, one element for all; PLACES, an
        element for each position in a row; LIKE, an element for each element of the rows."""
        k, first = self.k, self.first if way == LIKE else self.first.of(0)
        if way == ONE:
            return [element(k, buffer, dtype, first)] * RUN
        if buffer in self.form.vectors:
            return [flushed(word.f) for word in k.load_four(buffer, (first >> 2) + run.index)]
        if dtype == "float16" and self.form.fours:
            words = [k.load(buffer, (first >> 1) + (run.index << 1) + j) for j in range(RUN // 2)]
            return [x for word in words for x in from_halves(word)]
        return [
            element(k, buffer, dtype, first + (c * self.inner if way == LIKE else c))
            for c in self.places(run)
        ]
