"""The expected result of a check. It is exact, or it has a proven error bound, if float sums may be added in
any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
UNIT_ROUNDOFF = 2.0**-24  # unit roundoff of float32
HALF_ROUNDOFF = 2.0**-10  # roundoff of float16 in any rounding mode
HALF_NORMAL = 2.0**-14  # the smallest normal float16; a device may flush smaller values to 0
HALF_FLUSHED = 2.0**-8  # error, for a weight of 1, if a device flushes a float16 product and its sum to 0
HALF_LARGEST = 65504.0


@dataclass(frozen=True)
class Expected:
    """The reference's result, *y*. ``bound``: the allowed difference for each element; None if every bit must
    be equal."""

    y: Array
    bound: Array | None = None
    floats: str = "float32"  # the dtype of a result that has a bound

    @classmethod
    def of_sum(cls, y: Array, size: Array, k: int) -> Expected:
        """Return the expected result of a weight-only scheme with float32 sums. *size*: sum |x| |w| scale +
        |bias|. The bound is (K + 4) * roundoff * *size*, which holds for additions in any order."""
        return cls(y, (k + 4) * UNIT_ROUNDOFF * size)

    @classmethod
    def of_half(cls, y: Array, size: Array, ones: Array, k: int) -> Expected:
        """Return the expected result if x is rounded to float16 (for the bound see `vkq.reference.floats`).
        *size* and *k*: as in `of_sum`. *ones*: *size* computed with x = 1."""
        sums = (k + 4) * 4 * UNIT_ROUNDOFF
        return cls(y, (sums + HALF_ROUNDOFF) * (1 + sums) * size + HALF_NORMAL * ones)

    @classmethod
    def of_half_sums(cls, y: Array, size: Array, ones: Array, k: int) -> Expected:
        """Return the expected result if groups of 16 products are summed in float16 (for the bound see
        `vkq.reference.floats`). Parameters: as in `of_half`."""
        rounded = (1 + HALF_ROUNDOFF) ** 18 - 1
        bound = (rounded + (k + 4) * UNIT_ROUNDOFF) * size + (1 + rounded) * (
            HALF_NORMAL + HALF_FLUSHED
        ) * ones
        return cls(y, bound)

    @classmethod
    def of_half_rows(cls, y: Array, size: Array, ones: Array, k: int) -> Expected:
        """Return the expected float16 result for float16 x and weights in groups (for the bound see
        `vkq.reference.linear_grouped`). Where the result may exceed the largest float16, the bound is
        infinite. Parameters: as in `of_half`."""
        sums = (k + 4) * 4 * UNIT_ROUNDOFF * size + HALF_NORMAL * (1 + ones)
        bound = sums + HALF_ROUNDOFF * np.abs(y)
        return cls(y, np.where(np.abs(y) + bound >= HALF_LARGEST, np.inf, bound), "float16")

    def wrong(self, got: Array) -> npt.NDArray[np.bool_]:
        """Return a mask that is True for each wrong element of *got*, whose shape must be right. Without a
        bound, all bits must be equal, so that -0.0 differs from 0.0; with a bound, NaN is always wrong."""
        if self.bound is not None:
            with np.errstate(invalid="ignore"):  # inf - inf is an invalid operation
                return np.asarray(~(np.abs(got - self.y) <= self.bound))
        bits = {1: np.uint8, 2: np.uint16, 4: np.uint32}[self.y.dtype.itemsize]
        return np.asarray(np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(self.y).view(bits))

    def unlike(self, got: Array) -> str | None:
        """Return an error text if a result's dtype or shape is wrong, else None."""
        dtype = np.dtype(self.floats) if self.bound is not None else self.y.dtype
        if got.shape == self.y.shape and got.dtype == dtype:
            return None
        return f"the result is {got.dtype} {got.shape}, it must be {dtype} {self.y.shape}"

    def mismatch(self, got: Array) -> str | None:
        """Return a text with the count of wrong elements and the first one; None if the result is correct."""
        if said := self.unlike(got):
            return said
        wrong = self.wrong(got)
        if not wrong.any():
            return None
        first = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        count = f"{int(wrong.sum())} of {wrong.size} differ"
        return f"{count}; first at {first}: got {got[first]}, must be {self.y[first]}"

    def first(self, rows: int) -> Expected:
        """Return the expected result for the first *rows* rows of the input."""
        return Expected(self.y[:rows], None if self.bound is None else self.bound[:rows], self.floats)

    @property
    def how(self) -> str:
        """A text that says how results are compared: bit for bit, or within a bound."""
        return "bit for bit" if self.bound is None else "within the bound of a float32 sum"
