"""Write the shaders of chains of element-wise operators: one shader for each chain and form."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from ..numerics.elementary import from_half, from_halves, to_halves, to_int
from ..numerics.steps import Number, flushed, is_nan
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .chain_form import LOCAL, Chain, Form, per_turn, per_word


@functools.lru_cache(4096)
def written(chain: Chain, form: Form) -> Written:
    """Return the shader of a chain."""
    count = _numbers(form)
    names = ["first_group", "count", *(f"n{i}" for i in range(count))]
    results = len(chain.results)
    bindings = [
        Binding(i, f"x{i}", "read", "uint") for i in range(len(chain.inputs))
    ] + [Binding(len(chain.inputs) + i, f"y{i}", "write", "uint") for i in range(results)]  # fmt: skip
    per = LOCAL * form.turns * per_turn(chain, form.fours, form.held)
    ops = ".".join(step.op.lower() for step in chain.links[:6]) + "..." * (len(chain.links) > 6)
    return Written(
        "chain__element", f"chain__element:{ops}", "a chain of element-wise operators",
        tuple(bindings), tuple(PushConstant(name, "uint", 4 * i) for i, name in enumerate(names)),
        LOCAL, Expression(f"(count + {per - 1}) // {per}"), 0,
        lambda: _by_fours(chain, form) if form.fours else _module(chain, form),
    )  # fmt: skip


def _module(chain: Chain, form: Form) -> bytes:
    buffers = (*(False for _ in chain.inputs), *(True for _ in chain.results))
    k = KernelWriter(buffers, 2 + _numbers(form), LOCAL, form.soft, converts=form.converts)
    per, types = per_word(chain, form.held), chain.types
    first = k.workgroup() * (LOCAL * form.turns) + k.lane()
    made: list[tuple[Number, list[list[Number]]]] = []
    for turn in range(form.turns):
        word = first + turn * LOCAL
        elements = []
        for j in range(per):
            i = word * per + j
            last = k.word(1) - 1
            # Invocations beyond the end compute the last element, and store nothing.
            i = (last < i).where(last, i)
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
                buffer, values = len(chain.inputs) + n, [each[n] for each in elements]
                if form.held and form.held[n]:
                    width = k.word(1 + _numbers(form))
                    k.store(buffer, _place_of(word, width), bytes_word(form.held[n], values))
                else:
                    keep(k, buffer, types[value], word, values, per)
    return k.finish()


def _numbers(form: Form) -> int:
    """Return the number of push constants after the count of elements: sizes, strides, and the words of a
    row."""
    return max(form.rank - 1, 0) + form.rank * form.ways.count("strided") + any(form.held)


def _place_of(word: Number, width: Number) -> Number:
    """Convert the index of a word in a row-major array with rows of *width* words to the word's index in
    kPackedInt8_4H4W."""
    row = word.divided(width)
    return (((row >> 2) * width + (word - row * width)) << 2) + (row & 3)


def bytes_word(dtype: str, values: Sequence[Number]) -> Number:
    """Saturate four integers, given as float32, to *dtype*. Return them as one word of stored bytes."""
    info, words = np.iinfo(dtype), []
    for value in values:
        value = (value < float(info.min)).where(float(info.min), value)
        words.append(to_int((value > float(info.max)).where(float(info.max), value)).u & 0xFF)
    word = functools.reduce(lambda low, high: (low << 8) | high, reversed(words))
    return word if dtype == "int8" else word ^ 0x80808080


def _by_fours(chain: Chain, form: Form) -> bytes:
    """Write a shader whose invocations read and write vectors of four words. Every input must have the
    result's shape or one element, and the elements must fill whole vectors."""
    first_result, types, per = len(chain.inputs), chain.types, per_turn(chain, True)
    fours = {i for i, way in enumerate(form.ways) if way == "own"}
    results = range(first_result, first_result + len(chain.results))
    buffers = (*(False for _ in chain.inputs), *(True for _ in results))
    vectors = frozenset({*fours, *results})
    k = KernelWriter(buffers, 2, LOCAL, form.soft, fours=vectors, converts=form.converts)
    at, count = k.workgroup() * LOCAL + k.lane(), k.word(1) >> (per.bit_length() - 1)
    # invocations beyond the end compute the last vector, and store nothing
    here = (count - 1 < at).where(count - 1, at)
    inputs = [
        loaded(k, n, dtype, here, per) if n in fours else [element(k, n, dtype, at.of(0))] * per
        for n, dtype in enumerate(chain.inputs)
    ]
    elements = [chain.values(each) for each in zip(*inputs, strict=True)]
    with k.when(at < count):
        for n, value in zip(results, chain.results, strict=True):
            store_vectors(k, n, types[value], at, [each[n - first_result] for each in elements])
    return k.finish()


def loaded(k: KernelWriter, buffer: int, dtype: str, at: Number, per: int) -> list[Number]:
    """Load *per* elements from element *at* * *per* on, from a buffer of vectors."""
    count = per // (8 if dtype == "float16" else 4)
    words = [word for v in range(count) for word in k.load_four(buffer, at * count + v)]
    if dtype == "float16":
        return [x for word in words for x in from_halves(word)]
    return [number(dtype, word) for word in words]


def store_vectors(k: KernelWriter, buffer: int, dtype: str, at: Number, values: Sequence[Number]) -> None:
    """Store *values*, which fill whole vectors. *at* is their index in units of len(*values*)."""
    if dtype == "float16":
        pairs = zip(values[::2], values[1::2], strict=True)
        words = [to_halves(low, high) for low, high in pairs]
    else:
        words = [stored(dtype, value) for value in values]
    count = len(words) // 4
    for v in range(count):
        k.store_four(buffer, at * count + v, words[4 * v : 4 * v + 4])


def _places(k: KernelWriter, form: Form, i: Number) -> list[Number]:
    """Return the index of the element that element i of the result reads in each input."""
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
    """Load the element with the index *place* from a buffer."""
    if dtype == "float16":
        return from_half((k.load(buffer, place >> 1) >> ((place & 1) << 4)) & 0xFFFF)
    return number(dtype, k.load(buffer, place))


def number(dtype: str, word: Number) -> Number:
    """Decode an element of type *dtype* from its word."""
    if dtype == "float32":
        return flushed(word.f)
    return ~word.equals(0) if dtype == "bool" else word.i


def stored(dtype: str, value: Number) -> Number:
    """Encode an element of type *dtype* as a word."""
    if dtype == "float32":
        return is_nan(value).where(np.nan, value)
    return value.where(1, 0, "u") if dtype == "bool" else value


def keep(k: KernelWriter, buffer: int, dtype: str, word: Number, values: Sequence[Number], per: int) -> None:
    """Store *values*, the results for the word with the index *word*. *per*: the number of results for each
    word."""
    if dtype == "float16":
        return k.store(buffer, word, to_halves(*values))
    for j, value in enumerate(values):
        value = stored(dtype, value)
        at = word * per + j
        if j:  # per is 2 if another result is float16; the last word may have one element
            with k.when(at < k.word(1)):
                k.store(buffer, at, value)
        else:
            k.store(buffer, at, value)
