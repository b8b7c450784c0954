"""Element-wise operators on float16 values, held as float32. They have fewer steps than the float32
operators; rounded to float16, the results have the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable

from .exponential import LN2, clamped
from .rational import inverse
from .steps import Number, is_nan, magnitude, polynomial

EXP = (8.3590886e-3, 4.1847032e-2, 1.6666625e-1, 0.49999708)  # a fit of (e^r - 1 - r) / r^2
NEAR = (1 / 480, -1 / 48, 0.25)  # the series of (1 / (1 + e^-x) - 0.5) / x, in powers of x^2
ROUNDER = 12582912.0  # 1.5 * 2^23; adding and subtracting it rounds a smaller number to an integer


def sigmoid(x: Number) -> Number:
    """Return 1 / (1 + e^-x). For every float16 x, the result and that of the float32 operator round to the
    same float16 bits (tests/numerics)."""
    t = clamped(-x, -20.0, 20.0)
    sum_ = t * 1.4426950408889634 + ROUNDER
    n = sum_ - ROUNDER
    power = polynomial((t - n * LN2[0]) - n * LN2[1], *EXP, 1.0, 1.0)
    power = (power.u + ((sum_.u - x.of(ROUNDER).u) << 23)).f
    near = x * polynomial(x * x, *NEAR) + 0.5
    found = (magnitude(x) < 0.125).where(near, inverse(power + 1.0))
    return is_nan(x).where(x, found)


# Sums and products of float16 values are 0 or at least 2^-48, so nothing must be flushed.
OPERATORS: dict[str, Callable[..., Number]] = {
    "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y,
    "Sum": lambda *x: functools.reduce(lambda a, b: a + b, x), "Sigmoid": sigmoid,
}  # fmt: skip
# Operators that give float16 values for float16 operands.
EXACT = frozenset(("Abs", "Ceil", "Clip", "Floor", "Identity", "Max", "Min", "Neg", "Relu", "Round", "Sign"))
