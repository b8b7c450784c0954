"""A chain of element-wise operators as data, and the other properties that determine its kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..numerics.described import KINDS, applied, array_of, number_of
from ..numerics.steps import Number

LOCAL = 128
Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Link:
    """An operator of a chain."""

    op: str
    operands: tuple[int, ...]  # the numbers of the values that it reads (see `Chain`)
    dtype: str  # the type of the operands
    result: str  # the type of the result
    attributes: tuple[tuple[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Chain:
    """A chain of operators. Values are numbered: first the inputs (each given by its type), then the
    constants (type and value), then the result of each operator."""

    inputs: tuple[str, ...]
    constants: tuple[tuple[str, float], ...]
    links: tuple[Link, ...]
    results: tuple[int, ...]

    @property
    def types(self) -> tuple[str, ...]:
        """The type of each value."""
        return (*self.inputs, *(dtype for dtype, _ in self.constants), *(s.result for s in self.links))

    def values(self, inputs: Sequence[Number]) -> list[Number]:
        """Return the results of the chain for one element of each input."""
        like = inputs[0]
        values = [*inputs, *(_constant(like, dtype, value) for dtype, value in self.constants)]
        for step in self.links:
            operands = [values[i] for i in step.operands]
            values.append(applied(step.op, dict(step.attributes), step.dtype, *operands))
        return [values[i] for i in self.results]

    def computed(self, *arrays: Array) -> list[Array]:
        """Return the results of the chain for arrays, computed in NumPy."""
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
    """The properties besides the chain that determine a kernel. *soft*, *converts*: as in
    `vkq.shader.assembler.KernelWriter`.

    An input is read at the index of the result's element ("own"), at index 0 because it has one element
    ("one"), or at an index from strides ("strided")."""

    ways: tuple[str, ...]  # how each input is read
    rank: int  # the number of axes
    turns: int  # the number of words (or vectors of four words) that an invocation computes
    soft: bool
    converts: bool
    fours: bool  # an invocation computes vectors of four words
    held: tuple[str, ...] = ()  # the 8-bit type in which each result is packed (kPackedInt8_4H4W), or ""


def per_word(chain: Chain, held: Sequence[str] = ()) -> int:
    """Return the number of elements of a row in one word of a result."""
    if any(held):
        return 4
    return 2 if any(chain.types[i] == "float16" for i in chain.results) else 1


def per_turn(chain: Chain, fours: bool, held: Sequence[str] = ()) -> int:
    """Return the number of elements that an invocation computes at once: those of one word. With *fours*,
    return the smallest number that fills whole vectors in every buffer."""
    if not fours:
        return per_word(chain, held)
    return 8 if "float16" in (*chain.inputs, *(chain.types[i] for i in chain.results)) else 4
