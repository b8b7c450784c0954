"""Write integers as signed base-256 digits: 16-bit and 32-bit data become operands of exact int8 dot
products.

A number v in [lo, hi] is written as ``v = offset + sum_i 256**i * d_i`` with digits d_i in [-128, 127].
With offset 0, n digits represent the 256**n integers from ``-128 * ones`` to ``127 * ones``, where ones is
the sum of 256**i over the n digits. The offset shifts this range if it does not contain [lo, hi].

Let x_i be the digits of x and w_j those of w. A sum of products over any set of positions is

    sum x w = sum_ij 256**(i+j) sum x_i w_j  +  w_offset * sum (x - x_offset)  +  x_offset * sum w

The second term contains a window sum of the image. The third term is a constant.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Digits:
    """The digits of the elements of an array: ``count`` digits of ``bits`` bits, and the ``offset``. There
    are one or more digits of 8 bits, or one digit of 16 bits."""

    count: int
    offset: int
    bits: int = 8

    def __str__(self) -> str:
        moved = f", moved by {-self.offset}" if self.offset else ""
        return f"{self.count} digit{'s' if self.count > 1 else ''} of {self.bits} bits{moved}"

    @property
    def ones(self) -> int:
        """1 + 256 + ...: the increase of the value if each digit increases by 1."""
        return sum(1 << (self.bits * i) for i in range(self.count))

    @property
    def least(self) -> int:
        """The smallest number that the digits can represent."""
        return self.offset - (1 << (self.bits - 1)) * self.ones

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int8 if self.bits == 8 else np.int16)

    def of(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the digits of *values* (count, ...), the least significant first. A digit of 8 bits is
        byte i of ``values - least`` with its highest bit inverted; a digit of 16 bits is the 16-bit word."""
        if self.count == 1 and self.offset == 0 and values.dtype == self.dtype:
            return values[None]
        word = np.dtype(next(f"<u{n}" for n in (1, 2, 4) if 8 * n >= self.bits * self.count))
        # values - least is in [0, 2**(bits * count)), which fits the type *word*. So the difference modulo
        # 2**(bits of *word*) is exact.
        moved = values.astype(word) - word.type(self.least % 2 ** (8 * word.itemsize))
        parts = np.ascontiguousarray(moved, word).view("<u1" if self.bits == 8 else "<u2")
        parts = parts.reshape(*values.shape, 8 * word.itemsize // self.bits)[..., : self.count]
        flipped = parts ^ parts.dtype.type(1 << (self.bits - 1))
        digits: npt.NDArray[Any] = np.moveaxis(flipped, -1, 0).view(self.dtype)
        return digits

    def of_zero(self) -> list[int]:
        """Return the digits of 0, the digits of padding."""
        return [int(d) for d in self.of(np.zeros(1, np.int32)).reshape(-1)]


def digits_for(low: int, high: int, bits: int = 8) -> Digits:
    """Return the `Digits` with the fewest digits that represent 0 and every number in [low, high].

    >>> digits_for(-128, 127), digits_for(0, 255)
    (Digits(count=1, offset=0, bits=8), Digits(count=1, offset=128, bits=8))
    >>> digits_for(-5, 4000)
    Digits(count=2, offset=0, bits=8)
    """
    low, high = min(low, 0), max(high, 0)
    count = 1
    while high - low >= 1 << (bits * count):
        count += 1
    plain = Digits(count, 0, bits)
    largest = plain.least + (1 << (bits * count)) - 1
    return plain if plain.least <= low and high <= largest else Digits(count, high - largest, bits)
