"""What a result must be: every bit of it, or, where a float32 sum may be made in any order, within a proven
bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
UNIT_ROUNDOFF = 2.0**-24  # of float32
HALF_ROUNDOFF = 2.0**-10  # of float16, whichever way a device rounds
HALF_NORMAL = 2.0**-14  # the smallest normal float16: a device may flush what is smaller
HALF_FLUSHED = 2.0**-8  # what a product and a sum of float16 arithmetic may lose so, for a weight of 1
HALF_LARGEST = 65504.0


@dataclass(frozen=True)
class Expected:
    """The reference's answer; ``bound`` is how far a float32 accumulation may be from it, None where every
    bit must agree."""

    y: Array
    bound: Array | None = None
    floats: str = "float32"  # what has a bound is of this type

    @classmethod
    def of_sum(cls, y: Array, size: Array, k: int) -> Expected:
        """A weight-only result: within (K + 4) roundoffs of *size* = sum |x| |w| scale + |bias|, which
        any order of float32 additions stays within."""
        return cls(y, (k + 4) * UNIT_ROUNDOFF * size)

    @classmethod
    def of_half(cls, y: Array, size: Array, ones: Array, k: int) -> Expected:
        """The same with x rounded to float16 (`vkq.reference.floats` says why): *ones* is the size where
        every |x| is 1."""
        sums = (k + 4) * 4 * UNIT_ROUNDOFF
        return cls(y, (sums + HALF_ROUNDOFF) * (1 + sums) * size + HALF_NORMAL * ones)

    @classmethod
    def of_half_sums(cls, y: Array, size: Array, ones: Array, k: int) -> Expected:
        """The same where 16 products are added up in float16 (`vkq.reference.floats` says why)."""
        rounded = (1 + HALF_ROUNDOFF) ** 18 - 1
        bound = (rounded + (k + 4) * UNIT_ROUNDOFF) * size + (1 + rounded) * (
            HALF_NORMAL + HALF_FLUSHED
        ) * ones
        return cls(y, bound)

    @classmethod
    def of_half_rows(cls, y: Array, size: Array, ones: Array, k: int) -> Expected:
        """float16 of float16 x and weights in groups (`vkq.reference.linear_grouped` says why); infinite
        where it may be beyond the largest."""
        sums = (k + 4) * 4 * UNIT_ROUNDOFF * size + HALF_NORMAL * (1 + ones)
        bound = sums + HALF_ROUNDOFF * np.abs(y)
        return cls(y, np.where(np.abs(y) + bound >= HALF_LARGEST, np.inf, bound), "float16")

    def wrong(self, got: Array) -> npt.NDArray[np.bool_]:
        """Which elements of a result of this shape are wrong; -0.0 is not 0.0, and a NaN is wrong."""
        if self.bound is not None:
            with np.errstate(invalid="ignore"):  # two infinities
                return np.asarray(~(np.abs(got - self.y) <= self.bound))
        bits = {1: np.uint8, 2: np.uint16, 4: np.uint32}[self.y.dtype.itemsize]
        return np.asarray(np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(self.y).view(bits))

    def unlike(self, got: Array) -> str | None:
        """What is wrong with a result's type or shape; None where they are right."""
        dtype = np.dtype(self.floats) if self.bound is not None else self.y.dtype
        if got.shape == self.y.shape and got.dtype == dtype:
            return None
        return f"the result is {got.dtype} {got.shape}, it must be {dtype} {self.y.shape}"

    def mismatch(self, got: Array) -> str | None:
        """What is wrong with a result, with numbers; None where it is right."""
        if said := self.unlike(got):
            return said
        wrong = self.wrong(got)
        if not wrong.any():
            return None
        first = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        count = f"{int(wrong.sum())} of {wrong.size} differ"
        return f"{count}; first at {first}: got {got[first]}, must be {self.y[first]}"

    def first(self, rows: int) -> Expected:
        """The answer for the first rows of the input alone."""
        return Expected(self.y[:rows], None if self.bound is None else self.bound[:rows], self.floats)

    @property
    def how(self) -> str:
        """How a result was compared, in words."""
        return "bit for bit" if self.bound is None else "within the bound of a float32 sum"
