"""Arithmetic described as steps. NumPy computes each step immediately; `vkq.shader.assembler` writes it as
SPIR-V for a device.

A function over `Number` is the only description of its computation. The reference, constant folding and
devices use the same steps, so their bits cannot differ. Every step gives the same result on every device:
float32 sums and products rounded to nearest even (never fused), comparisons, and operations on 32-bit
integers.

A float32 below the normal range (2^-126) may count as zero on a device. So functions flush their operands
and results (`flushed`), and no subnormal intermediate value affects a result.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["f", "u", "i", "b"]  # the types float32, uint32, int32 and bool
DTYPES: dict[str, Any] = {"f": np.float32, "u": np.uint32, "i": np.int32, "b": np.bool_}
Array = npt.NDArray[Any]
SIGN, MAGNITUDE, INFINITY, HIDDEN, NAN = 0x80000000, 0x7FFFFFFF, 0x7F800000, 0x800000, 0x7FC00000


class Number(abc.ABC):
    """A value of a `Kind`, in NumPy or on a device. Each operator on it is a step.

    A Python number as the second operand is converted to this value's kind. ``>>`` of an int32 is an
    arithmetic shift. Compared floats must not be NaN.
    """

    kind: Kind
    # Whether functions must flush floats. False in a kernel whose results do not change by flushing.
    flushes = True
    # Whether the operations "lowhalf", "highhalf" and "tohalves" may be used (`vkq.probe.conversions`).
    converts = False
    # The value before it was rounded to float16 (`vkq.numerics.elementary.halved`); None for other values.
    unrounded: Number | None = None

    @abc.abstractmethod
    def emit(self, op: str, kind: Kind, *operands: Number) -> Number:
        """Add a step with these operands, and return its result. *op*: a key of `NUMPY`. *kind*: the kind
        of the result."""

    @abc.abstractmethod
    def constant(self, value: float | int | bool, kind: Kind) -> Number:
        """Return a constant as a `Number` of this value's class: in NumPy, or in this value's kernel."""

    def of(self, value: Number | float | int | bool, kind: Kind | None = None) -> Number:
        """Return a Python number as a `Number` of *kind* (None: the kind of this `Number`). Return a
        `Number` unchanged."""
        return value if isinstance(value, Number) else self.constant(value, kind or self.kind)

    def _with(self, op: str, other: Any, kind: Kind | None = None) -> Number:
        return self.emit(f"{self.kind}{op}", kind or self.kind, self, self.of(other))

    def __add__(self, other: Any) -> Number:
        return self._with("add", other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Number:
        return self._with("mul", other)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Number:
        return self._with("sub", other)

    def __rsub__(self, other: Any) -> Number:
        return self.of(other) - self

    def __neg__(self) -> Number:
        return self ^ SIGN if self.kind == "f" else self.of(0) - self

    def __and__(self, other: Any) -> Number:
        return self._bits("and", other)

    def __or__(self, other: Any) -> Number:
        return self._bits("or", other)

    def __xor__(self, other: Any) -> Number:
        return self._bits("xor", other)

    def _bits(self, op: str, other: Any) -> Number:
        """Apply the bitwise operator *op*. If this is a float, the operator works on the bits of both
        operands, and the result is a float."""
        if self.kind == "b":
            return self._with(op, other)
        if self.kind == "f":
            bits: Number = self.u._bits(op, other.u if isinstance(other, Number) else other)
            return bits.f
        return self._with(op, other.to(self.kind) if isinstance(other, Number) else other)

    @property
    def inverted(self) -> Number:
        return self.emit("bnot", "b", self) if self.kind == "b" else self ^ (2**32 - 1)

    def __invert__(self) -> Number:
        return self.inverted

    def __lshift__(self, other: Any) -> Number:
        return self._with("shl", other)

    def __rshift__(self, other: Any) -> Number:
        return self._with("shr", other)

    def __lt__(self, other: Any) -> Number:
        return self._with("lt", other, "b")

    def __gt__(self, other: Any) -> Number:
        return self.of(other) < self

    def __ge__(self, other: Any) -> Number:
        return self._with("lt", other, "b").inverted

    def __le__(self, other: Any) -> Number:
        return self.of(other)._with("lt", self, "b").inverted

    def equals(self, other: Any) -> Number:
        """Return True (as a `Number`) if two integers, or the bits of two floats, are equal."""
        if self.kind == "f":
            return self.u.equals(self.of(other).u)
        return self._with("eq", other, "b")

    def where(self, yes: Any, no: Any, kind: Kind = "f") -> Number:
        """Return *yes* if this bool is True, else *no*. *kind*: the kind of the result if neither is a
        `Number`."""
        known = next((v for v in (yes, no) if isinstance(v, Number)), None)
        kind = known.kind if known else kind
        return self.emit(f"{kind}select", kind, self, self.of(yes, kind), self.of(no, kind))

    def modulo(self, other: Any) -> Number:
        """Return the remainder of a division of uint32 values by a divisor that is not 0."""
        return self._with("mod", other)

    def divided(self, other: Any) -> Number:
        """Return the quotient of uint32 values, rounded down. The divisor is not 0."""
        return self._with("div", other)

    def high(self, other: Any) -> Number:
        """Return the upper 32 bits of a product of uint32 values."""
        return self._with("high", other)

    def to(self, kind: Kind) -> Number:
        """Return the 32 bits of this value, unchanged, as a `Number` of another kind."""
        return self if kind == self.kind else self.emit(f"{self.kind}as{kind}", kind, self)

    @property
    def f(self) -> Number:
        return self.to("f")

    @property
    def u(self) -> Number:
        return self.to("u")

    @property
    def i(self) -> Number:
        return self.to("i")

    def as_float(self) -> Number:
        """Convert an int32 to float32. The conversion is exact for magnitudes below 2^24, which are
        required."""
        return self.emit("itof", "f", self)

    def as_int(self) -> Number:
        """Convert a float32 to int32: truncate toward zero. The magnitude must be below 2^31."""
        return self.emit("ftoi", "i", self)


def _shift(left: bool) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        found: Array = (np.left_shift if left else np.right_shift)(a, b.astype(a.dtype))
        return found

    return shift


def _cut(a: Array) -> Array:
    """Truncate float32 to int32. For values out of range, NumPy and devices may differ."""
    found: Array = np.clip(np.nan_to_num(a), -(2.0**31), 2147483520)
    return found.astype(np.int32)


def _halves(*numbers: Array) -> Array:
    """Return two float32 arrays, rounded to float16, as words; the first is in the lower 16 bits."""
    low, high = (np.asarray(x, np.float16).view(np.uint16).astype(np.uint32) for x in numbers)
    found: Array = low | (high << 16)
    return found


def _view(dtype: Any) -> Callable[[Array], Array]:
    return lambda a: np.asarray(a).view(dtype)


OF_WHOLE: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "shl": _shift(True), "shr": _shift(False), "lt": np.less, "eq": np.equal,
}  # fmt: skip
NUMPY: dict[str, Callable[..., Any]] = {
    "fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "flt": np.less,
    "itof": lambda a: a.astype(np.float32), "ftoi": _cut,
    "lowhalf": lambda a: a.astype(np.uint16).view(np.float16).astype(np.float32),
    "highhalf": lambda a: NUMPY["lowhalf"](a >> 16), "tohalves": _halves,
    "bnot": np.logical_not, "band": np.logical_and, "bor": np.logical_or, "bxor": np.logical_xor,
    "uhigh": lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32),
    "umod": np.remainder, "udiv": np.floor_divide,
    **{f"{kind}{op}": f for kind in "ui" for op, f in OF_WHOLE.items()},
    **{f"{kind}select": np.where for kind in "fuib"},
    **{f"{a}as{b}": _view(DTYPES[b]) for a in "fui" for b in "fui" if a != b},
}  # fmt: skip


class Computed(Number):
    """A `Number` that holds a NumPy array. Each step is computed immediately."""

    __slots__ = ("array", "kind")

    def __init__(self, array: npt.ArrayLike, kind: Kind = "f"):
        self.array = np.asarray(array, DTYPES[kind])
        self.kind = kind

    def emit(self, op: str, kind: Kind, *operands: Number) -> Number:
        return type(self)(NUMPY[op](*(operand.array for operand in operands)), kind)  # type: ignore[attr-defined]

    def constant(self, value: float | int | bool, kind: Kind) -> Number:
        wrapped = int(value) & 0xFFFFFFFF if kind in "ui" else value
        return type(self)(np.array(wrapped, np.uint32).view(DTYPES[kind]) if kind in "ui" else value, kind)


def computed(function: Callable[..., Number], *arrays: npt.ArrayLike) -> Array:
    """Return the result of a function of `Number`s for float32 arrays, computed in NumPy."""
    with np.errstate(all="ignore"):
        result = function(*(Computed(array) for array in arrays))
    assert isinstance(result, Computed)
    return result.array


# ------------------------------------------------------------------------------------------- shared functions


def flushed(x: Number) -> Number:
    """Return x, or a zero with the sign of x if x is below the normal range."""
    if not x.flushes:
        return x
    return (x.u & INFINITY).equals(0).where(x & SIGN, x)


def is_nan(x: Number) -> Number:
    return (x.u & MAGNITUDE) > INFINITY


def magnitude(x: Number) -> Number:
    return x & MAGNITUDE


def scaled(x: Number, exponent: Number) -> Number:
    """Return x * 2^exponent for a finite x: 0 below the normal range and infinite above it, with the sign
    of x."""
    to = (magnitude(x).u >> 23).i + exponent
    nothing = (magnitude(x).u < HIDDEN) | (to < 1)
    found = (magnitude(x).u + (exponent.u << 23)).f
    return nothing.where(0.0, (to > 254).where(np.inf, found)) ^ (x.u & SIGN)


def exact_sum(a: Number, b: Number) -> tuple[Number, Number]:
    """Return (a + b rounded, its rounding error) (Knuth)."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def quick_sum(a: Number, b: Number) -> tuple[Number, Number]:
    """Return (a + b rounded, its rounding error), if a is 0 or |a| >= |b| (Dekker)."""
    total = a + b
    return total, b - (total - a)


def exact_product(a: Number, b: Number) -> tuple[Number, Number]:
    """Return (a * b rounded, its rounding error) (Dekker). The error is exact if no part of it is below the
    normal range."""
    total = a * b
    ah, bh = a & 0xFFFFF000, b & 0xFFFFF000
    al, bl = a - ah, b - bh
    return total, ((ah * bh - total) + ah * bl + al * bh) + al * bl


def polynomial(x: Number, *coefficients: float) -> Number:
    """Return the value of a polynomial at x (Horner). The first coefficient is that of the highest power."""
    total = x.of(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total
