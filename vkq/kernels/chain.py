"""Chains of element-wise operators: one dispatch, whose operands broadcast by strides.

A chain is a value: operators on numbered values. NumPy takes its steps (`Chain.computed`) as a kernel does
that is written down for it (`vkq.shader.assembler`); sizes and strides are push constants, so other shapes
of the same pattern take the same kernel.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layout.extent import Spec
from ..numerics.described import KINDS, applied, array_of, number_of
from ..numerics.elementary import from_half, to_half
from ..numerics.steps import Number, flushed, is_nan
from ..runtime.builder import Builder, Value
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.interface import MAX_BYTES
from ..shader.spec import Binding, PushConstant, Written

LOCAL = 128
MOST_BUFFERS = 4
MANY = 1 << 18  # words from which an invocation makes TURNS of them
TURNS = 4
Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Link:
    """An operator on earlier values, whose operands are of type *dtype* and whose result is of *result*."""

    op: str
    operands: tuple[int, ...]
    dtype: str
    result: str
    attributes: tuple[tuple[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Chain:
    """Values by number: the inputs (by type), then constants (type and number), then each step's result."""

    inputs: tuple[str, ...]
    constants: tuple[tuple[str, float], ...]
    links: tuple[Link, ...]
    results: tuple[int, ...]

    @property
    def types(self) -> tuple[str, ...]:
        """The type of each value."""
        return (*self.inputs, *(dtype for dtype, _ in self.constants), *(s.result for s in self.links))

    def values(self, inputs: Sequence[Number]) -> list[Number]:
        """The results, of numbers."""
        like = inputs[0]
        values = [*inputs, *(_constant(like, dtype, value) for dtype, value in self.constants)]
        for step in self.links:
            operands = [values[i] for i in step.operands]
            values.append(applied(step.op, dict(step.attributes), step.dtype, *operands))
        return [values[i] for i in self.results]

    def computed(self, *arrays: Array) -> list[Array]:
        """The results in NumPy."""
        with np.errstate(all="ignore"):
            found = self.values([number_of(array) for array in arrays])
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        types = self.types
        return [
            np.broadcast_to(array_of(value, types[i]), shape).copy()
            for value, i in zip(found, self.results, strict=True)
        ]


def _constant(like: Number, dtype: str, value: float) -> Number:
    kind = KINDS[dtype]
    return like.of(bool(value) if kind == "b" else int(value) if kind == "i" else value, kind)


@dataclasses.dataclass(frozen=True)
class Form:
    """What else a kernel depends on: how each input lies ("own" as the result, "one" number, "strided"), how
    many axes those share, words that an invocation makes, and whether sums are whole numbers'."""

    ways: tuple[str, ...]
    rank: int
    turns: int
    soft: bool


def chained(b: Builder, chain: Chain, inputs: Sequence[Value], shape: Sequence[int]) -> list[Value]:
    """Adds a chain to a plan; its results have this shape, to which the inputs broadcast."""
    stored = [_stored(chain.types[i]) for i in chain.results]
    results = [b.new(Spec(shape, dtype)) for dtype in stored]
    size = math.prod(shape)
    if size:
        sizes, strides = collapsed(tuple(shape), tuple(value.spec.shape for value in inputs))
        whole = _contiguous(sizes)
        ways = tuple(
            "one" if value.spec.size == 1 else "own" if own == whole else "strided"
            for value, own in zip(inputs, strides, strict=True)
        )
        rank = len(sizes) if "strided" in ways else 0
        words = -(-size // _per_word(chain))
        form = Form(ways, rank, TURNS if words >= MANY else 1, b.device.soft_float)
        program = b.device.program(written(chain, form))
        numbers = [*sizes[1:]] if rank else []
        numbers += [s for way, own in zip(ways, strides, strict=True) if way == "strided" for s in own]
        push: dict[str, int | float] = {"count": size}
        push.update((f"n{i}", n) for i, n in enumerate(numbers))
        b.dispatch(program, [*inputs, *results], push, macs=words * len(chain.links) // 8)
    return results


def _stored(dtype: str) -> str:
    """The type in memory: bool as int32 numbers 0 and 1."""
    return "int32" if dtype == "bool" else dtype


def _per_word(chain: Chain) -> int:
    return 2 if any(chain.types[i] == "float16" for i in chain.results) else 1


def _contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


@functools.lru_cache(4096)
def collapsed(
    shape: tuple[int, ...], operands: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The axes of a result, neighbours joined where every operand allows it, and each operand's strides."""
    rank = len(shape)
    all_strides = []
    for own in operands:
        padded = (*(1,) * (rank - len(own)), *own)
        steps = _contiguous(padded)
        all_strides.append([0 if d == 1 else s for d, s in zip(padded, steps, strict=True)])
    axes: list[tuple[int, list[int]]] = []
    for i, d in enumerate(shape):
        if d == 1:
            continue
        here = [strides[i] for strides in all_strides]
        if axes and all(before == s * d for before, s in zip(axes[-1][1], here, strict=True)):
            axes[-1] = axes[-1][0] * d, here
        else:
            axes.append((d, here))
    axes = axes or [(1, [0] * len(operands))]
    return tuple(d for d, _ in axes), tuple(tuple(s[k] for _, s in axes) for k in range(len(operands)))


def fits(shapes: Sequence[Sequence[int]], shape: Sequence[int]) -> bool:
    """Whether the push constants of one kernel can hold how inputs broadcast."""
    sizes, strides = collapsed(tuple(shape), tuple(map(tuple, shapes)))
    return 4 * (2 + len(sizes) + len(sizes) * len(strides)) <= MAX_BYTES


@functools.lru_cache(4096)
def written(chain: Chain, form: Form) -> Written:
    """The shader of a chain."""
    count = max(form.rank - 1, 0) + form.rank * form.ways.count("strided")
    names = ["first_group", "count", *(f"n{i}" for i in range(count))]
    results = len(chain.results)
    bindings = [
        Binding(i, f"x{i}", "read", "uint") for i in range(len(chain.inputs))
    ] + [Binding(len(chain.inputs) + i, f"y{i}", "write", "uint") for i in range(results)]  # fmt: skip
    per = LOCAL * form.turns * _per_word(chain)
    ops = ".".join(step.op.lower() for step in chain.links[:6]) + "..." * (len(chain.links) > 6)
    return Written(
        "chain__element", f"chain__element:{ops}", "a chain of element-wise operators",
        tuple(bindings), tuple(PushConstant(name, "uint", 4 * i) for i, name in enumerate(names)),
        LOCAL, Expression(f"(count + {per - 1}) // {per}"), 0, lambda: _module(chain, form),
    )  # fmt: skip


def _module(chain: Chain, form: Form) -> bytes:
    buffers = (*(False for _ in chain.inputs), *(True for _ in chain.results))
    count = max(form.rank - 1, 0) + form.rank * form.ways.count("strided")
    k = KernelWriter(buffers, 2 + count, LOCAL, form.soft)
    per, types = _per_word(chain), chain.types
    first = k.workgroup() * (LOCAL * form.turns) + k.lane()
    made: list[tuple[Number, list[list[Number]]]] = []
    for turn in range(form.turns):
        word = first + turn * LOCAL
        elements = []
        for j in range(per):
            i = word * per + j
            last = k.word(1) - 1
            i = (last < i).where(last, i)  # what is beyond the end is made, too, but kept nowhere
            places = _places(k, form, i)
            inputs = [
                element(k, n, dtype, place)
                for n, (dtype, place) in enumerate(zip(chain.inputs, places, strict=True))
            ]
            elements.append(chain.values(inputs or [i.of(0.0, "f")]))
        made.append((word, elements))
    for word, elements in made:
        with k.when(word * per < k.word(1)):
            for n, value in enumerate(chain.results):
                keep(k, len(chain.inputs) + n, types[value], word, [each[n] for each in elements], per)
    return k.finish()


def _places(k: KernelWriter, form: Form, i: Number) -> list[Number]:
    """Where each input's element lies for an element of the result."""
    at, rest = form.rank - 1, i
    coordinates: list[Number] = []
    for axis in range(form.rank - 1, 0, -1):
        size = k.word(2 + axis - 1)
        whole = rest.divided(size)
        coordinates.insert(0, rest - whole * size)
        rest = whole
    coordinates.insert(0, rest)
    places: list[Number] = []
    for way in form.ways:
        if way == "strided":
            terms = [c * k.word(2 + at + n) for n, c in enumerate(coordinates)]
            at += form.rank
            places.append(functools.reduce(lambda a, b: a + b, terms))
        else:
            places.append(i if way == "own" else i.of(0))
    return places


def element(k: KernelWriter, buffer: int, dtype: str, place: Number) -> Number:
    """An element of a buffer."""
    if dtype == "float16":
        return from_half((k.load(buffer, place >> 1) >> ((place & 1) << 4)) & 0xFFFF)
    word = k.load(buffer, place)
    if dtype == "float32":
        return flushed(word.f)
    return ~word.equals(0) if dtype == "bool" else word.i


def keep(k: KernelWriter, buffer: int, dtype: str, word: Number, values: Sequence[Number], per: int) -> None:
    """Writes a word's worth of elements."""
    if dtype == "float16":
        low, high = map(to_half, values)
        return k.store(buffer, word, low | (high << 16))
    for j, value in enumerate(values):
        if dtype == "float32":
            value = is_nan(value).where(np.nan, value)
        elif dtype == "bool":
            value = value.where(1, 0, "u")
        at = word * per + j
        if j:  # the last word of float16 numbers may be half
            with k.when(at < k.word(1)):
                k.store(buffer, at, value)
        else:
            k.store(buffer, at, value)


def named(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Attributes as a part of a `Link`."""
    return tuple(
        sorted(
            (name, value)
            for name, value in attributes.items()
            if isinstance(value, int | float | str | tuple)
        )
    )
