"""Element-wise operators on two 8-bit tensors. A float formula with an error bound computes the results. A
lookup table gives those results that are so close to a rounding tie that the formula may be wrong.
`sum_after` makes an addition the epilogue of another kernel."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..numerics.elementwise import (
    BinaryOp,
    Float32,
    binary_table,
    fused_multiply_add,
    scale_of_product,
    scales_of_sum,
    swaps,
)
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation, activation_bounds
from ..numerics.stored import shift, signed
from .after import After, with_sum

TIE = 0.5
FLOAT_STEP = 2.0**-23  # bound of the relative error of a float32 operation with any rounding direction
LARGEST_PRODUCT = 255.0 * 255.0


@dataclasses.dataclass(frozen=True)
class BinaryFormula:
    """The formula of the shader. If its value is farther from the nearest integer than a limit, the result
    comes from the lookup table."""

    variant: str
    ra: float
    rb: float
    offset: float
    safe: float  # the limit on devices that do not round floats to nearest even
    exact: float  # the limit on devices that round floats to nearest even

    def sure(self, soft_float: bool) -> bool:
        """Return True if either the formula or the table gives every result."""
        return self.variant == "table" or (not soft_float and self.exact >= TIE)


BY_TABLE = BinaryFormula("table", 0.0, 0.0, 0.0, -1.0, -1.0)


@functools.lru_cache(maxsize=256)
def arithmetic(op: BinaryOp, a: QParams, b: QParams, y: QParams) -> BinaryFormula:
    """Return the float formula for stored int8 values. Its limit ``safe`` allows for the largest difference
    between the formula's value and the float32 steps that define the result."""
    if op == "mul":
        ra = scale_of_product(a, b, y)
        # A value outside of the type's range saturates, whatever its error. Inside, the product and the sum
        # are below 2^9. Both the shader and the float32 definition round the product and the sum.
        return _within(BinaryFormula("mul", ra, 0.0, float(y.zero_point), TIE - FLOAT_STEP * 1024, TIE),
                       ra * LARGEST_PRODUCT)  # fmt: skip
    moved_a, moved_b, moved_y = (shift(q.dtype) for q in (a, b, y))
    ra, rb, plain = (float(value) for value in scales_of_sum(a, b, y, op == "sub"))
    offset = plain + moved_a * ra + moved_b * rb - moved_y
    # *largest* bounds every term and partial sum. Errors, in units of 2^-23 * largest: at most 1 for each
    # of four steps of the shader, 1 for the change of the constants in `_exact`, and 1/2 each for the
    # rounded offset and two steps of the float32 definition. The total is 6.5, less than 7.
    largest = 256 * (abs(ra) + abs(rb)) + max(abs(plain), abs(offset))
    formula = _within(BinaryFormula("add", ra, rb, offset, TIE - 7 * FLOAT_STEP * largest, 0.0), largest)
    return formula if formula is BY_TABLE else _exact(formula, stored_table(op, a, b, y, None))


def _within(formula: BinaryFormula, largest: float) -> BinaryFormula:
    """Return *formula*, or BY_TABLE if its values (at most *largest*) or its factor are close to float32's
    limits, or ``safe`` is too small."""
    able = np.isfinite(largest) and largest < 2.0**100 and formula.ra >= 2.0**-100
    return formula if able and formula.safe > TIE / 2 else BY_TABLE


def _exact(formula: BinaryFormula, table: npt.NDArray[np.int8]) -> BinaryFormula:
    """Return a formula for sums that gives every result of the table on devices that round to nearest even.
    Try the three constants unchanged, then neighbouring floats. If no combination gives every result, keep
    the constants, and set ``exact`` just below the smallest distance of a wrong sum from the nearest
    integer."""
    q = np.arange(-128, 128)
    value = q * formula.ra + q[:, None] * formula.rb + formula.offset
    distance = np.abs(value - np.rint(value))
    b, a = np.nonzero(distance >= formula.safe)  # rounding can change only these results
    near, want = (q[a].astype(np.float32), q[b].astype(np.float32)), table[b, a]
    numbers = np.array([formula.ra, formula.rb, formula.offset], np.float32)
    exact = []
    for steps in sorted(itertools.product((0, 1, -1), repeat=3), key=np.count_nonzero):
        ra, rb, offset = numbers * (1 + np.array(steps, np.float32) * np.float32(FLOAT_STEP))
        exact.append(_first_wrong(near, want, ra, rb, offset))
        if exact[-1] >= TIE:
            return dataclasses.replace(
                formula, ra=float(ra), rb=float(rb), offset=float(offset), exact=exact[-1]
            )
    return dataclasses.replace(formula, exact=exact[0])


def _first_wrong(
    near: tuple[Float32, Float32], want: npt.NDArray[np.int8], ra: np.float32, rb: np.float32,
    offset: np.float32,
) -> float:  # fmt: skip
    """Compute the sum of ``near[0] * ra``, ``near[1] * rb`` and *offset* in every way that a device may: in
    both orders, and with each product either fused with its addition or rounded before it. A sum is wrong
    if its nearest integer is not *want*. Return a number just below the smallest distance of a wrong sum
    from the nearest integer, or 1 if no sum is wrong."""
    safe = 1.0
    for (x, rx), (z, rz) in itertools.permutations(zip(near, (ra, rb), strict=True)):
        for inner in (z * rz + offset, fused_multiply_add(z, rz, offset)):
            for value in (x * rx + inner, fused_multiply_add(x, rx, inner)):
                value = np.clip(value, np.float32(-128), np.float32(127))
                wrong = np.abs(value - np.rint(value))[np.rint(value) != want]
                safe = min(safe, float(np.nextafter(wrong.min(initial=1.0), np.float32(0))))
    return safe


def stored_table(
    op: BinaryOp, a: QParams, b: QParams, y: QParams, activation: Activation
) -> npt.NDArray[np.int8]:
    """Return the stored result for every pair of stored values, as int8 (256, 256). The index is [b +
    128][a + 128]."""
    low, high = activation_bounds(activation, y)
    return np.clip(_table(op, a, b, y), low - shift(y.dtype), high - shift(y.dtype))


# Cached: an addition uses its table twice, and a session computes all tables in advance.
@functools.lru_cache(maxsize=64)
def _table(op: BinaryOp, a: QParams, b: QParams, y: QParams) -> npt.NDArray[np.int8]:
    table = signed(binary_table(op, a, b, y))
    table.flags.writeable = False
    return table


def sum_after(
    op: Literal["add", "sub"], own: QParams, other: QParams, yq: QParams, activation: Activation,
    own_first: bool, shape: Sequence[int],
) -> After:  # fmt: skip
    """Return the epilogue that applies *op* to a kernel's results and another operand, both of shape
    *shape*. *own*, *other*, *yq*: the quantization parameters of the kernel's results, of the other operand
    and of the epilogue's results. *own_first*: the kernel's results are the first operand of *op*. The
    results have the same bits as those of `vkq.ops.elementwise.combined`."""
    a, b = (own, other) if own_first else (other, own)
    if op == "add" and swaps(tuple(shape), tuple(shape)):
        a, b, own_first = b, a, not own_first
    low, high = (bound - shift(yq.dtype) for bound in activation_bounds(activation, yq))

    def numbers() -> tuple[float, ...]:
        n = arithmetic(op, a, b, yq)
        return *((n.ra, n.rb) if own_first else (n.rb, n.ra)), n.offset, n.safe, n.exact

    def table() -> npt.NDArray[np.int8]:
        found = stored_table(op, a, b, yq, activation)
        return found if own_first else found.T

    return with_sum(numbers, (low, high), yq, table)
