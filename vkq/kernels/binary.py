"""The parameters of the kernel for two 8-bit tensors: a float formula with an error bound, and a table that
decides near ties. `sum_after` makes the same sum an epilogue of another kernel."""

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
FLOAT_STEP = 2.0**-23  # the relative error of one float32 operation, rounded in any direction
LARGEST_PRODUCT = 255.0 * 255.0


@dataclasses.dataclass(frozen=True)
class BinaryFormula:
    """The shader's formula: its variant and its constants. The table decides values whose distance from the
    nearest integer exceeds ``safe`` (``exact`` on devices that round floats to nearest even)."""

    variant: str
    ra: float
    rb: float
    offset: float
    safe: float
    exact: float

    def sure(self, soft_float: bool) -> bool:
        """True if the formula alone gives every result exactly, or the table alone does."""
        return self.variant == "table" or (not soft_float and self.exact >= TIE)


BY_TABLE = BinaryFormula("table", 0.0, 0.0, 0.0, -1.0, -1.0)


@functools.lru_cache(maxsize=256)
def arithmetic(op: BinaryOp, a: QParams, b: QParams, y: QParams) -> BinaryFormula:
    """Return the float formula on the stored int8 values. Its ``safe`` allows for the largest difference from
    the float32 steps that define the result."""
    if op == "mul":
        ra = scale_of_product(a, b, y)
        # Only values within the type's range matter: larger values saturate, whatever their relative error.
        # Product and sum are then below 2^9, and are rounded in both formulas.
        return _within(BinaryFormula("mul", ra, 0.0, float(y.zero_point), TIE - FLOAT_STEP * 1024, TIE),
                       ra * LARGEST_PRODUCT)  # fmt: skip
    moved_a, moved_b, moved_y = (shift(q.dtype) for q in (a, b, y))
    ra, rb, plain = (float(value) for value in scales_of_sum(a, b, y, op == "sub"))
    offset = plain + moved_a * ra + moved_b * rb - moved_y
    # *largest* bounds every term and partial sum. Four steps of the shader, and the change by `_exact`, each
    # have an error of at most 2^-23 * largest. The offset and two steps of the defined result each have half
    # that error.
    largest = 256 * (abs(ra) + abs(rb)) + max(abs(plain), abs(offset))
    formula = _within(BinaryFormula("add", ra, rb, offset, TIE - 7 * FLOAT_STEP * largest, 0.0), largest)
    return formula if formula is BY_TABLE else _exact(formula, stored_table(op, a, b, y, None))


def _within(formula: BinaryFormula, largest: float) -> BinaryFormula:
    """Return the formula if its values, at most *largest*, are far from float32's limits; else BY_TABLE."""
    able = np.isfinite(largest) and largest < 2.0**100 and formula.ra >= 2.0**-100
    return formula if able and formula.safe > TIE / 2 else BY_TABLE


def _exact(formula: BinaryFormula, table: npt.NDArray[np.int8]) -> BinaryFormula:
    """Return a formula of sums that gives every result of the table if its steps are rounded to nearest even:
    with the three constants as they are, or with neighbouring floats. If no combination does, keep the
    constants and set ``exact`` below the distance from an integer of every wrong sum."""
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
    """Return a value just below the smallest distance of a wrong sum from its integer, or 1 if no sum is
    wrong. Each sum is computed in every way a device may: in both orders of the operands, with each product
    fused with its addition or rounded before it."""
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
    """Return the result for every pair of stored values."""
    low, high = activation_bounds(activation, y)
    return np.clip(_table(op, a, b, y), low - shift(y.dtype), high - shift(y.dtype))


# Cached because an addition needs its table twice, and a session computes all tables in advance.
@functools.lru_cache(maxsize=64)
def _table(op: BinaryOp, a: QParams, b: QParams, y: QParams) -> npt.NDArray[np.int8]:
    table = signed(binary_table(op, a, b, y))
    table.flags.writeable = False
    return table


def sum_after(
    op: Literal["add", "sub"], own: QParams, other: QParams, yq: QParams, activation: Activation,
    own_first: bool, shape: Sequence[int],
) -> After:  # fmt: skip
    """Return the epilogue that applies ``op`` to a kernel's results (of this shape, with the parameters
    *own*) and to another operand of the same shape. Its results have the bits of
    `vkq.ops.elementwise.combined`. own_first: True if the kernel's results are the first operand."""
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
