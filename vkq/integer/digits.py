"""Integers as signed base-256 digits, so that 16-bit and 32-bit data become operands of exact int8 dot
products.

A number v in [lo, hi] is ``v = offset + sum_i 256**i * d_i`` with digits d_i in [-128, 127]. ``n`` digits
represent the 256**n integers from ``-128 * ones`` to ``127 * ones`` with ones = 1 + 256 + ... The offset is
0 if this range contains [lo, hi]. Otherwise the offset shifts the range, so that it contains [lo, hi].
Then, for a sum over any set of positions,

    sum x w = sum_ij 256**(i+j) sum x_i w_j  +  w_offset * sum (x - x_offset)  +  x_offset * sum w

where the second term is a window sum of the image, and the third is a constant.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Digits:
    """The digits of an array's elements: ``count`` digits of ``bits`` bits each (8, or one digit of 16), and
    the offset."""

    count: int
    offset: int
    bits: int = 8

    def __str__(self) -> str:
        moved = f", moved by {-self.offset}" if self.offset else ""
        return f"{self.count} digit{'s' if self.count > 1 else ''} of {self.bits} bits{moved}"

    @property
    def ones(self) -> int:
        """1 + 256 + ...: the number by which the value grows if each digit grows by 1."""
        return sum(1 << (self.bits * i) for i in range(self.count))

    @property
    def least(self) -> int:
        """The smallest number that the digits can represent."""
        return self.offset - (1 << (self.bits - 1)) * self.ones

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int8 if self.bits == 8 else np.int16)

    def of(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the digits of *values*, (count, ...), least significant first. They are the bytes of
        ``values - least``, each with its top bit flipped."""
        if self.count == 1 and self.offset == 0 and values.dtype == self.dtype:
            return values[None]
        word = np.dtype(next(f"<u{n}" for n in (1, 2, 4) if 8 * n >= self.bits * self.count))
        # values - least is in [0, 2**(bits * count)). The word type has at least as many bits, so the
        # difference is exact even if it wraps.
        moved = values.astype(word) - word.type(self.least % 2 ** (8 * word.itemsize))
        parts = np.ascontiguousarray(moved, word).view("<u1" if self.bits == 8 else "<u2")
        parts = parts.reshape(*values.shape, 8 * word.itemsize // self.bits)[..., : self.count]
        flipped = parts ^ parts.dtype.type(1 << (self.bits - 1))
        digits: npt.NDArray[Any] = np.moveaxis(flipped, -1, 0).view(self.dtype)
        return digits

    def of_zero(self) -> list[int]:
        """Return the digits of the number 0, with which padding is filled."""
        return [int(d) for d in self.of(np.zeros(1, np.int32)).reshape(-1)]


def digits_for(low: int, high: int, bits: int = 8) -> Digits:
    """Return the smallest number of digits that represent 0 and every number of [low, high].

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
