"""What the kernel of two 8-bit tensors computes with: a float formula with a bound of its error, the table
that decides near ties, and the same as another kernel's last step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..numerics.elementwise import BinaryOp, binary_table, scale_of_product, scales_of_sum, swaps
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation, activation_bounds
from ..numerics.stored import shift, signed
from .after import After, with_sum

TIE = 0.5
FLOAT_STEP = 2.0**-23  # the relative error of one float32 operation, rounded in any direction
LARGEST_PRODUCT = 255.0 * 255.0


@dataclasses.dataclass(frozen=True)
class BinaryFormula:
    """How the shader computes ``op``: its variant and the numbers it needs. ``safe`` is how far from an
    integer it may round, ``exact`` where the device rounds floats to nearest even."""

    variant: str
    ra: float
    rb: float
    offset: float
    safe: float
    exact: float


BY_TABLE = BinaryFormula("table", 0.0, 0.0, 0.0, -1.0, -1.0)


@functools.lru_cache(maxsize=256)
def arithmetic(op: BinaryOp, a: QParams, b: QParams, y: QParams) -> BinaryFormula:
    """The float formula on the stored int8 numbers, and a bound of its error against the exact result's own
    float32 steps."""
    moved_a, moved_b, moved_y = (shift(q.dtype) for q in (a, b, y))
    if op == "mul":
        ra, rb, offset = scale_of_product(a, b, y), 0.0, float(y.zero_point)
        # Only values inside the type matter: a larger one saturates whatever its relative error. Product and
        # sum are below 2^9 then, and round in both formulas.
        variant, error, largest = "mul", FLOAT_STEP * 1024, ra * LARGEST_PRODUCT
    else:
        exact = scales_of_sum(a, b, y, op == "sub")
        ra, rb, offset = (float(value) for value in exact)
        plain, offset = offset, offset + moved_a * ra + moved_b * rb - moved_y
        # No term, nor any sum of them, is larger. Four steps of the shader's are off by 2^-23 of it at most,
        # the offset and two steps of the exact result by half as much.
        largest = 256 * (abs(ra) + abs(rb)) + max(abs(plain), abs(offset))
        variant, error = "add", 6 * FLOAT_STEP * largest
    if not (np.isfinite(largest) and largest < 2.0**100 and ra >= 2.0**-100 and error < TIE / 2):
        return BY_TABLE
    safe = TIE - error
    safest = safe if op == "mul" else _exact(stored_table(op, a, b, y, None), ra, rb, offset)
    return BinaryFormula(variant, ra, rb, offset, safe, safest)


def _exact(table: npt.NDArray[np.int8], ra: float, rb: float, offset: float) -> float:
    """How far from an integer the shader's sums may be rounded where its steps are exact: less than the first
    that is not what the table, [b + 128][a + 128], says; with the operands in either order."""
    q, safe = np.arange(-128, 128, dtype=np.float32), 1.0
    a, b = q * np.float32(ra), q[:, None] * np.float32(rb)
    for value in (a + (b + np.float32(offset)), b + (a + np.float32(offset))):
        value = np.clip(value, np.float32(-128), np.float32(127))
        wrong = np.abs(value - np.rint(value))[np.rint(value) != table]
        safe = min(safe, float(np.nextafter(wrong.min(initial=1.0), np.float32(0))))
    return safe


def stored_table(
    op: BinaryOp, a: QParams, b: QParams, y: QParams, activation: Activation
) -> npt.NDArray[np.int8]:
    """The result of every pair of stored numbers."""
    return signed(binary_table(op, a, b, y, activation))


def sum_after(
    op: Literal["add", "sub"], own: QParams, other: QParams, yq: QParams, activation: Activation,
    own_first: bool, shape: Sequence[int],
) -> After:  # fmt: skip
    """``op`` of a kernel's results, of *shape* and parameters *own*, with an operand of that shape, to the
    bits of `vkq.ops.elementwise.combined`. own_first: whether the results are its first operand."""
    a, b = (own, other) if own_first else (other, own)
    if op == "add" and swaps(tuple(shape), tuple(shape)):
        a, b, own_first = b, a, not own_first
    numbers, moved = arithmetic(op, a, b, yq), shift(yq.dtype)
    low, high = (bound - moved for bound in activation_bounds(activation, yq))
    ra, rb = (numbers.ra, numbers.rb) if own_first else (numbers.rb, numbers.ra)

    def table() -> npt.NDArray[np.int8]:
        found = stored_table(op, a, b, yq, activation)
        return found if own_first else found.T

    return with_sum(ra, rb, numbers.offset, (numbers.safe, numbers.exact), (low, high), yq, table)
