"""Chains of element-wise operators. One dispatch computes a chain, and broadcasts operands by strides.

A chain is a list of operators on numbered values. `vkq.shader.assembler` writes its kernel.
`Chain.computed` computes the same steps in NumPy. Sizes and strides are push constants, so shapes with the
same broadcast pattern share a kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..layout.extent import BYTES, MATRIX, Spec
from ..runtime.builder import Builder, Value
from ..shader.interface import MAX_BYTES
from .chain_form import Chain, Form, Link, per_turn, per_word
from .chain_shader import written

__all__ = ["MOST_BUFFERS", "Chain", "Link", "chained", "collapsed", "fits", "named", "packs"]

MOST_BUFFERS = 4
# If a result has at least MANY words, an invocation computes a vector of four words, or TURNS separate
# words.
MANY = 1 << 18
TURNS = 4


def chained(
    b: Builder, chain: Chain, inputs: Sequence[Value], shape: Sequence[int], held: tuple[str, ...] = ()
) -> list[Value]:
    """Add a chain to a plan. The inputs broadcast to *shape*, the shape of all results. *held*: the 8-bit
    type in which each result is stored, or "" for the result's own type. Only float32 results with integer
    values may be stored as bytes, and only if `packs` returns True."""
    stored = [_stored(chain.types[i]) for i in chain.results]
    if held:
        stored = [own or dtype for own, dtype in zip(held, stored, strict=True)]
    results = [b.new(Spec(shape, dtype, MATRIX if dtype in BYTES else None)) for dtype in stored]
    size = math.prod(shape)
    if size:
        sizes, strides = collapsed(tuple(shape), tuple(value.spec.shape for value in inputs))
        whole = _contiguous(sizes)
        ways = tuple(
            "one" if value.spec.size == 1 else "own" if own == whole else "strided"
            for value, own in zip(inputs, strides, strict=True)
        )
        rank = len(sizes) if "strided" in ways else 0
        words = -(-size // per_word(chain, held))
        vectors = bool(inputs) and not rank and not any(held) and size % per_turn(chain, True) == 0
        fours = words >= MANY and vectors
        turns = TURNS if words >= MANY and not fours else 1
        form = Form(ways, rank, turns, b.device.soft_float, b.device.converts, fours, held)
        program = b.device.program(written(chain, form))
        numbers = [*sizes[1:]] if rank else []
        numbers += [s for way, own in zip(ways, strides, strict=True) if way == "strided" for s in own]
        numbers += [shape[-1] // 4] if any(held) else []
        push: dict[str, int | float] = {"count": size}
        push.update((f"n{i}", n) for i, n in enumerate(numbers))
        b.dispatch(program, [*inputs, *results], push, macs=words * len(chain.links) // 8)
    return results


def _stored(dtype: str) -> str:
    """Return the dtype in memory: bool is stored as int32 0 or 1."""
    return "int32" if dtype == "bool" else dtype


def _contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


@functools.lru_cache(4096)
def collapsed(
    shape: tuple[int, ...], operands: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return (sizes of the result's axes, strides of each operand), after neighbouring axes that are
    contiguous in every operand are merged."""
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


def fits(shapes: Sequence[Sequence[int]], shape: Sequence[int], more: int = 0) -> bool:
    """Return True if the push constants have room for the sizes and strides of operands of these *shapes*
    that broadcast to *shape*, and for *more* further numbers."""
    sizes, strides = collapsed(tuple(shape), tuple(map(tuple, shapes)))
    return 4 * (2 + len(sizes) + len(sizes) * len(strides) + more) <= MAX_BYTES


def packs(chain: Chain, shapes: Sequence[Sequence[int]], shape: Sequence[int]) -> bool:
    """Return True if a chain can store results as bytes. Rows must fill words of four bytes, so their
    length must be a multiple of 4. No result may be float16: only two float16 elements fit into a word."""
    return bool(shape) and shape[-1] % 4 == 0 and per_word(chain) == 1 and fits(shapes, shape, 1)


def named(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return attributes as (name, value) pairs, sorted by name (`Link.attributes`). Attributes that are no
    numbers, strings or tuples are left out."""
    return tuple(
        sorted(
            (name, value)
            for name, value in attributes.items()
            if isinstance(value, int | float | str | tuple)
        )
    )
