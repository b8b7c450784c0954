"""Append new tokens to an int8 cache of keys or values (`vkq.numerics.attention_cache`). One dispatch
quantizes the new tokens, writes them to their positions, and copies the past tokens."""

from __future__ import annotations

import dataclasses
import functools

from ..layout.extent import Spec
from ..numerics.attention_cache import PER_WORD, code, scale_of, words_of
from ..numerics.elementary import maximum
from ..numerics.rows import MOST_LANES, lanes_of
from ..numerics.steps import Number, flushed, magnitude
from ..runtime.builder import Builder, Value
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .row_lanes import RowLanes

WORDS = ("first_group", "rows", "groups", "tokens", "total", "held", "span")


@dataclasses.dataclass(frozen=True)
class AppendForm:
    """The compile-time properties of an append kernel."""

    width: int  # elements of a vector
    starts: bool  # the kernel reads a buffer of start positions
    follows: bool  # the kernel reads a buffer of past tokens
    soft: bool  # the kernel computes float arithmetic with integer instructions

    @property
    def lanes(self) -> int:
        return lanes_of(self.width)


def appended(b: Builder, x: Value, start: Value | None, past: Value | None, total: int) -> Value:
    """Add the dispatch that appends x to a cache to a plan. Return the new cache, int32 (batch, groups,
    *total*, words).

    x: float32 (batch, tokens, groups, width). Token i gets position ``start[batch] + i`` (*start*: int32;
    None: 0); tokens at position *total* or later are dropped. All other positions keep the words of *past*,
    or are 0 where *past* has none."""
    batch, tokens, groups, width = x.spec.shape
    y = b.new(Spec((batch, groups, total, words_of(width)), "int32"))
    if not y.spec.size:
        return y
    form = AppendForm(width, start is not None, past is not None, b.device.soft_float)
    push = {
        "rows": batch * groups * total, "groups": groups, "tokens": tokens, "total": total,
        "held": 0 if past is None else past.spec.shape[2], "span": total,
    }  # fmt: skip
    slots = [x, *([] if start is None else [start]), *([] if past is None else [past]), y]
    b.dispatch(b.device.program(written(form)), slots, push, macs=batch * groups * total * width)
    if past is not None and past.spec.shape == y.spec.shape:
        # y may overwrite *past*: only the invocation that writes a word of y reads the same word of *past*
        span = min(tokens, total)
        b.may_overwrite([(y, past)], push | {"rows": batch * groups * span, "span": span})
    return y


@functools.lru_cache(64)
def written(form: AppendForm) -> Written:
    """Return the shader of an append kernel."""
    names = ["x", *["start"] * form.starts, *["past"] * form.follows]
    bindings = [Binding(i, name, "read", "uint") for i, name in enumerate(names)]
    bindings.append(Binding(len(names), "y", "write", "uint"))
    push = tuple(PushConstant(name, "uint", 4 * i) for i, name in enumerate(WORDS))
    about = f"{form.width}" + ".start" * form.starts + ".past" * form.follows
    return Written(
        "attention_cache__append", f"attention_cache__append:{about}", "tokens quantized into a cache",
        tuple(bindings), push, MOST_LANES,
        Expression(f"(rows * {form.lanes} + {MOST_LANES - 1}) // {MOST_LANES}"), 2 * 4 * MOST_LANES,
        lambda: _AppendKernel(form).module(), "0",
    )  # fmt: skip


class _AppendKernel:
    """The generator of the append kernel. Several invocations share a vector of the cache; ``at`` is the
    index of the vector in the new cache."""

    def __init__(self, form: AppendForm):
        buffers = (*[False] * (1 + form.starts + form.follows), True)
        self.form = form
        self.k = k = KernelWriter(buffers, len(WORDS), MOST_LANES, form.soft, 2 * MOST_LANES)
        self.lanes = RowLanes(k, form.lanes, 1)
        row, rows = k.workgroup() * self.lanes.rows + self.lanes.row, self.word("rows")
        self.inside = row < rows
        item, total, span = self.inside.where(row, rows - 1), self.word("total"), self.word("span")
        self.matrix = item.divided(span)
        self.batch = self.matrix.divided(self.word("groups"))
        self.place = item - self.matrix * span  # the vector's distance from the start position
        start = k.load(1, self.batch) if form.starts else k.constant(0, "u")
        position = start + self.place
        self.token = position.modulo(total)
        self.new = (position < total) & (self.place < self.word("tokens"))
        self.at = self.matrix * total + self.token

    def word(self, name: str) -> Number:
        return self.k.word(WORDS.index(name))

    def module(self) -> bytes:
        k, count, new = self.k, words_of(self.form.width), self.new
        runs = self.numbers(new.where(self.place, 0))
        largest = functools.reduce(maximum, [magnitude(x) for _, run in runs for x in run])
        scale, first, y = self.lanes.joined("max", largest, scale_of), self.at * count, len(self.buffers)
        with k.when(self.inside & new):
            for index, run in runs:
                codes = [code(x, scale) for x in run]
                with k.when(index < count - 1):
                    low = [(one.u & 0xFF) << 8 * i for i, one in enumerate(codes)]
                    k.store(y, first + index, functools.reduce(lambda a, b: a | b, low))
            with k.when(self.lanes.own.equals(0)):
                k.store(y, first + (count - 1), scale)
        with k.when(self.inside & ~new):
            for index in self.indices(count):
                with k.when(index < count):
                    k.store(y, first + index, self.before(index, count))
        return k.finish()

    @property
    def buffers(self) -> list[str]:
        """The names of the buffers that the kernel reads."""
        return ["x", *["start"] * self.form.starts, *["past"] * self.form.follows]

    def indices(self, count: int) -> list[Number]:
        """Return the indices of the words that this invocation writes, of the *count* words of a vector.
        Words with indices of *count* or more must not be written."""
        return [self.lanes.own + first for first in range(0, count, self.form.lanes)]

    def numbers(self, place: Number) -> list[tuple[Number, list[Number]]]:
        """Load this invocation's elements of new token number *place*. Return (index, four numbers) for
        each word of the cache that the invocation writes; numbers beyond the width are 0."""
        width, group = self.form.width, self.matrix - self.batch * self.word("groups")
        token = self.batch * self.word("tokens") + place
        first, runs = (token * self.word("groups") + group) * width, []
        for index in self.indices(words_of(width) - 1):
            run = []
            for j in range(PER_WORD):
                column = index * PER_WORD + j
                there = column < width
                loaded = flushed(self.k.load(0, first + there.where(column, 0)).f)
                run.append(there.where(loaded, 0.0))
            runs.append((index, run))
        return runs

    def before(self, index: Number, count: int) -> Number:
        """Return word *index* of the past token at this vector's position, or 0 if there is no past token.
        *count*: the number of words of a vector."""
        if not self.form.follows:
            return index.of(0)
        held = self.word("held")
        there = self.token < held
        at = (self.matrix * held + there.where(self.token, 0)) * count + index
        return there.where(self.k.load(len(self.buffers) - 1, at), 0)
