"""Split x (batch, tokens, columns), the result of a linear layer, into attention heads. A part of the
columns is the queries, keys or values of several heads. It may be rotated (`vkq.numerics.rotary`),
converted, and written into a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from .described import array_of, number_of
from .rotary import rotated
from .steps import Array

VECTOR = 8  # neighbouring numbers of a head that a kernel computes at once


Order = Literal["tokens", "heads", "cache"]


@dataclasses.dataclass(frozen=True)
class Part:
    """The columns from *first* on: *heads* heads of *width* numbers each. The result has one of these
    shapes:

    - "tokens": (batch, tokens, heads, width)
    - "heads": (batch, heads, tokens, width)
    - "cache": a cache (batch, heads, rows, width), in which the tokens replace rows"""

    first: int
    heads: int
    width: int
    rotated: bool  # the first numbers of each head are rotated in pairs
    dtype: str  # the type of the result
    order: Order  # the shape of the result

    def shape(self, batch: int, tokens: int, rows: int = 0) -> tuple[int, ...]:
        """Return the shape of the result. rows: the number of rows of the cache."""
        if self.order == "tokens":
            return (batch, tokens, self.heads, self.width)
        return (batch, self.heads, rows if self.order == "cache" else tokens, self.width)

    def computed(self, x: Array, angles: Sequence[Array], interleaved: bool) -> Array:
        """Return the heads of x, float32 or float16: (batch, tokens, heads, width) for the order "tokens",
        else (batch, heads, tokens, width). angles: cosines and sines, float32 (batch or 1, tokens, 1, n);
        the first 2 n numbers of each head are rotated."""
        columns = x[..., self.first : self.first + self.heads * self.width]
        found = columns.reshape(*x.shape[:2], self.heads, self.width)
        if self.rotated:
            found = rotated(found.astype(np.float32), angles[0], angles[1], interleaved)
        if found.dtype.name != self.dtype:
            found = array_of(number_of(found), self.dtype)
        return found if self.order == "tokens" else np.ascontiguousarray(found.transpose(0, 2, 1, 3))
