"""Split the columns of a product into heads of queries, keys and values, rotate the heads, and write keys
and values into their caches (`vkq.numerics.heads`). This is one dispatch; an invocation computes a vector
of eight numbers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

from ..layout.extent import Spec
from ..numerics.elementary import from_halves, to_halves
from ..numerics.heads import VECTOR, Part
from ..numerics.rotary import first_of, second_of
from ..numerics.steps import Number
from ..runtime.builder import Builder, Value
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .lines import LOCAL

WORDS = ("first_group", "count", "tokens", "rows", "span", "turns")


@dataclasses.dataclass(frozen=True)
class HeadsForm:
    """The compile-time properties of a kernel. *soft*, *converts*: as in
    `vkq.shader.assembler.KernelWriter`."""

    parts: tuple[Part, ...]
    columns: int  # of x
    dtype: str  # of x
    pairs: int  # pairs of elements of a head that are rotated
    interleaved: bool  # a pair is two neighbouring elements; False: elements i and i + pairs
    soft: bool
    converts: bool

    @property
    def reads(self) -> list[str]:
        """The names of the arrays that the kernel reads."""
        pasts = [f"past{i}" for i, part in enumerate(self.parts) if part.order == "cache"]
        angles = ["cos", "sin"] if any(part.rotated for part in self.parts) else []
        return ["x", *angles, *(["start"] if pasts else []), *pasts]

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the push constants. ``span``: the number of rows of each cache that the kernel
        writes, from the row of the first token on. ``end<i>``: the number of vectors that the kernel writes
        for parts 0 to i."""
        return (*WORDS, *(f"end{i}" for i in range(len(self.parts))))


def headed(
    b: Builder, x: Value, angles: Sequence[Value], start: Value | None, pasts: Sequence[Value],
    parts: Sequence[Part], interleaved: bool,
) -> list[Value]:  # fmt: skip
    """Add the heads of x (batch, tokens, columns), float32 or float16, to a plan. Return a value for each
    part. `fits` decides which sizes are allowed.

    - angles: cosines and sines, float32 (batch or 1, tokens, 1, pairs); empty if no part is rotated.
    - start: int32 (batch,), the row of the caches for the first token of each batch element. The next tokens
      get the next rows; row 0 follows the last row.
    - pasts: for each part with the order "cache", the cache (batch, heads, rows, width) in which the tokens
      replace rows. All caches have the same number of rows."""
    batch, tokens, columns = x.spec.shape
    rows = pasts[0].spec.shape[2] if pasts else 0
    pairs = angles[0].spec.shape[3] if angles else 0
    device = b.device.soft_float, b.device.converts
    form = HeadsForm(tuple(parts), columns, x.spec.dtype, pairs, interleaved, *device)
    results = [b.new(Spec(part.shape(batch, tokens, rows), part.dtype)) for part in parts]
    push = {"tokens": tokens, "rows": rows, "turns": math.prod(angles[0].spec.shape[:2]) if angles else 1}
    slots = [x, *angles, *([] if start is None else [start]), *pasts, *results]
    whole = _ends(form, batch, tokens, rows)
    if whole["count"]:
        b.dispatch(b.device.program(written(form)), slots, push | whole)
        caches = [y for y, part in zip(results, parts, strict=True) if part.order == "cache"]
        if caches:  # a cache may overwrite its *past*: an invocation writes the words that it has read
            shorter = push | _ends(form, batch, tokens, min(tokens, rows))
            b.may_overwrite(list(zip(caches, pasts, strict=True)), shorter)
    return results


def _ends(form: HeadsForm, batch: int, tokens: int, span: int) -> dict[str, int]:
    """Return the push constants for the amount of output: the kernel writes *span* rows of each cache."""
    sizes = [math.prod(part.shape(batch, tokens, span)) // VECTOR for part in form.parts]
    ends = list(itertools.accumulate(sizes))
    return {"count": ends[-1], "span": span, **{f"end{i}": end for i, end in enumerate(ends)}}


def fits(part: Part, columns: int, pairs: int, interleaved: bool) -> bool:
    """Return True if the kernel supports this part of an x with *columns* columns."""
    whole = all(size % VECTOR == 0 for size in (part.first, part.width, columns))
    if not part.rotated:
        return whole
    return whole and 2 * pairs <= part.width and pairs % (VECTOR // 2 if interleaved else VECTOR) == 0


def buffers(parts: Sequence[Part]) -> int:
    """Return the number of arrays that the kernel of these parts reads and writes."""
    return len(HeadsForm(tuple(parts), 0, "", 0, False, False, False).reads) + len(parts)


@functools.lru_cache(256)
def written(form: HeadsForm) -> Written:
    """Return the shader for a form."""
    names = [(name, "read") for name in form.reads] + [(f"y{i}", "write") for i in range(len(form.parts))]
    ops = [part.order + ".rotated" * part.rotated for part in form.parts]
    types = dict.fromkeys((form.dtype, *(part.dtype for part in form.parts)))
    about = f"{'.'.join(ops)}.{'-'.join(types)}" + ".interleaved" * form.interleaved
    return Written(
        "heads__vector", f"heads__vector:{about}",
        "heads of queries, keys and values", tuple(Binding(i, *one, "uint") for i, one in enumerate(names)),
        tuple(PushConstant(word, "uint", 4 * i) for i, word in enumerate(form.words)),
        LOCAL, Expression(f"(count + {LOCAL - 1}) // {LOCAL}"), 0, lambda: _Heads(form).module(),
    )  # fmt: skip


class _Heads:
    """The generator of the kernel for a form."""

    def __init__(self, form: HeadsForm):
        self.form, self.reads = form, form.reads
        writes = (*(False for _ in self.reads), *(True for _ in form.parts))
        fours = frozenset(i for i in range(len(writes)) if i >= len(self.reads) or self.reads[i] != "start")
        self.k = KernelWriter(writes, len(form.words), LOCAL, form.soft, 0, fours, form.converts)

    def word(self, name: str) -> Number:
        return self.k.word(self.form.words.index(name))

    def buffer(self, name: str) -> int:
        return self.reads.index(name)

    def module(self) -> bytes:
        i = self.k.workgroup() * LOCAL + self.k.lane()
        begin = i.of(0)
        for n, part in enumerate(self.form.parts):
            end = self.word(f"end{n}")
            with self.k.when(~(i < begin) & (i < end)):
                self.part(n, part, i - begin)
            begin = end
        return self.k.finish()

    def part(self, n: int, part: Part, i: Number) -> None:
        """Write the code for vector number *i* of the result of a part."""
        vectors = part.width // VECTOR
        if part.order == "tokens":
            token = i.divided(part.heads * vectors)
            column = i - token * (part.heads * vectors)
            return self.store(n, part, i, self.computed(part, token, column))
        tokens, above = self.word("tokens"), i.divided(vectors)
        span = tokens if part.order == "heads" else self.word("span")
        matrix = above.divided(span)
        batch, token, v = matrix.divided(part.heads), above - matrix * span, i - above * vectors
        column = (matrix - batch * part.heads) * vectors + v
        if part.order == "heads":
            return self.store(n, part, i, self.computed(part, batch * tokens + token, column))
        row, rows = self.k.load(self.buffer("start"), batch) + token, self.word("rows")
        at = (matrix * rows + (row < rows).where(row, row - rows)) * vectors + v
        with self.k.when(token < tokens):
            self.store(n, part, at, self.computed(part, batch * tokens + token, column))
        with self.k.when(~(token < tokens)):
            self.store(n, part, at, self.words(self.buffer(f"past{n}"), part.dtype, at))

    def words(self, buffer: int, dtype: str, at: Number) -> list[Number]:
        """Load the words of vector number *at* of an array."""
        count = VECTOR // (8 if dtype == "float16" else 4)
        return [word for j in range(count) for word in self.k.load_four(buffer, at * count + j)]

    def numbers(self, buffer: int, dtype: str, at: Number) -> list[Number]:
        """Load vector number *at* of an array as float32."""
        words = self.words(buffer, dtype, at)
        if dtype == "float32":
            return [word.f for word in words]
        return [x for word in words for x in from_halves(word)]

    def store(self, n: int, part: Part, at: Number, words: Sequence[Number]) -> None:
        for j in range(len(words) // 4):
            to = at * (len(words) // 4) + j
            self.k.store_four(len(self.reads) + n, to, words[4 * j : 4 * j + 4])

    def computed(self, part: Part, token: Number, column: Number) -> list[Number]:
        """Return the words of one vector of a part, converted and rotated. *column*: the index of the
        vector in the part's columns for this token."""
        at = token * (self.form.columns // VECTOR) + part.first // VECTOR + column
        if part.rotated:
            found = self.rotated(part, token, column, at)
        elif part.dtype == self.form.dtype:
            return self.words(0, part.dtype, at)
        else:
            found = self.numbers(0, self.form.dtype, at)
        if part.dtype == "float32":
            return [x.u for x in found]
        return [to_halves(low, high) for low, high in zip(found[::2], found[1::2], strict=True)]

    def rotated(self, part: Part, token: Number, column: Number, at: Number) -> list[Number]:
        """Return vector number *at* of x, rotated."""
        vectors, turns = part.width // VECTOR, self.word("turns")
        v, row = column - column.divided(vectors) * vectors, token - token.divided(turns) * turns
        own = self.numbers(0, self.form.dtype, at)
        inside = v < 2 * self.form.pairs // VECTOR
        if self.form.interleaved:
            place = row * (self.form.pairs // 4) + inside.where(v, 0)
            cos, sin = (
                [word.f for word in self.k.load_four(self.buffer(name), place)] for name in ("cos", "sin")
            )
            turned = []
            for a, b, c, s in zip(own[::2], own[1::2], cos, sin, strict=True):
                turned += [first_of(a, b, c, s), second_of(a, b, c, s)]
        else:
            half = self.form.pairs // VECTOR
            first = v < half
            other = inside.where(first.where(at + half, at - half), at)
            beside = self.numbers(0, self.form.dtype, other)
            place = row * half + inside.where(first.where(v, v - half), 0)
            cos, sin = (self.numbers(self.buffer(name), "float32", place) for name in ("cos", "sin"))
            turned = [
                first.where(first_of(x, y, c, s), second_of(y, x, c, s))
                for x, y, c, s in zip(own, beside, cos, sin, strict=True)
            ]
        if 2 * self.form.pairs == part.width:
            return turned
        return [inside.where(x, y) for x, y in zip(turned, own, strict=True)]
