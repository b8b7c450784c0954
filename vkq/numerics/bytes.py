"""Quantization and dequantization of 8-bit values in steps (`vkq.numerics.steps`), with the results of
`vkq.numerics.quantize`. Bytes are as a device stores them (`vkq.numerics.stored`).

Scales and zero points are inputs of the steps, which a kernel reads from push constants, so one kernel
serves every layer.
"""

from __future__ import annotations

import math

import numpy as np

from .elementary import maximum, minimum, round_even
from .qparams import QParams
from .rational import divide
from .steps import HIDDEN, INFINITY, SIGN, Number, is_nan, magnitude

MOST = 512.0  # quotients of a larger magnitude saturate for every zero point
# x is multiplied by the reciprocal of a scale in [2^-LARGE, 2^LARGE], and divided by any other scale: the
# reciprocal could overflow or be subnormal.
LARGE = 100
ONE = 0x3F800000  # the bits of 1.0
MIDDLE, MIDDLE_BITS = 1.5 * 2.0**23, 0x4B400000  # adding MIDDLE rounds a smaller float to an integer


def dequantized(byte: Number, scale: Number, zero: Number) -> Number:
    """Return ``(byte - zero) * scale`` as float32. *byte*: int32 in [-128, 127]. *zero*: a
    `signed_zero_point`."""
    return (byte.as_float() - zero.as_float()) * scale


def divides(q: QParams) -> bool:
    """Return True if a `Quantizer` with this scale must divide instead of multiplying by the reciprocal."""
    return not 2.0**-LARGE < q.scale < 2.0**LARGE


def reciprocal(q: QParams) -> float:
    """Return the float32 reciprocal of the significand (in [1, 2)) of the scale."""
    return float(np.float32(1) / np.float32(2 * math.frexp(q.scale)[0]))


class Quantizer:
    """Quantize float32 values to int32 in [-128, 127]: ``saturate(round_half_even(x / scale) + zero)``; NaN
    gives -128. Subnormal x must have been flushed to 0.

    zero: a `signed_zero_point`. reciprocal, divides: the results of the functions `reciprocal` and
    `divides`."""

    def __init__(self, scale: Number, reciprocal: Number, zero: Number, divides: bool):
        self._scale, self._reciprocal, self._zero, self._divides = scale, reciprocal, zero, divides
        self._power = ((scale.of(254, "u") - (scale.u >> 23)) << 23).f  # scale * power is in [1, 2)
        whole = ((scale.u & (HIDDEN - 1)) | ONE).f
        # The upper 12 bits of the significand. A tie has at most 11 bits, so its product with them is exact.
        self._upper = whole & 0xFFFFF000
        self._lower, self._half_unit = whole - self._upper, whole * 2.0**-24
        self._inverse = self._power * reciprocal

    def __call__(self, x: Number) -> Number:
        found = (self._divided if self._divides else self._nearest)(x)
        return self._saturated(is_nan(x).where(x.of(-512, "i"), found) + self._zero)

    def _saturated(self, found: Number) -> Number:
        most = (found > 127).where(127, found)
        return (most < -128).where(-128, most)

    def quick(self, x: Number) -> tuple[Number, Number]:
        """Return (result, correct) in fewer steps than `__call__`, for scales for which `divides` is False.
        If the Boolean *correct* is True, the result equals that of `__call__`. *correct* is False if x is
        NaN, or if the product of x and the reciprocal has a magnitude of 2^21 or more or is within 2^-14 of
        a tie. Subnormal x may be unflushed.

        A product below 257 is within 2^-14 of the float32 quotient. A larger product, up to 2^21, is within
        1/2 of the quotient, and quotient and product both saturate.
        """
        quotient = x * self._inverse
        whole = quotient + MIDDLE
        apart = magnitude(quotient - (whole - MIDDLE))
        # If x is NaN, *apart* is NaN. The comparison of its bits then gives False, whatever the comparison
        # with 2^21 gives.
        right = (magnitude(quotient) < 2.0**21) & (apart.u < x.of(0.5 - 2.0**-14).u)
        return self._saturated(whole.i - (self._zero.of(MIDDLE_BITS, "i") - self._zero)), right

    def _divided(self, x: Number) -> Number:
        quotient = round_even(divide(x, self._scale))
        return minimum(maximum(quotient, x.of(-MOST)), x.of(MOST)).as_int()

    def _nearest(self, x: Number) -> Number:
        """Return ``round_half_even(x / scale)``, clamped to [-512, 512], without a division.

        Let k be x * (1 / scale), truncated. The only tie near the quotient is k + 1/2. The difference of x
        and ``(k + 1/2) * scale`` is exact if it is small. Let u be half an ulp of the tie. The float32
        quotient equals the tie if the magnitude of the difference is below u * scale.

        The difference cannot equal +-u * scale. Otherwise x would be (tie +- u) * scale, where tie +- u is
        an odd 25-bit integer times a power of two, so x would need more than the 24 bits of float32.
        """
        top = self._scale * MOST
        a = (magnitude(x).u < top.u).where(magnitude(x), top) * self._power
        k = (a * self._reciprocal).as_int()
        tie = k.as_float() + 0.5
        more = (a - tie * self._upper) - tie * self._lower
        half_unit = (tie & INFINITY) * self._half_unit
        up, level = more > half_unit, more > -half_unit
        found = up.where(k + 1, level.where(k + (k & 1), k))
        return (x.u >= SIGN).where(-found, found)
