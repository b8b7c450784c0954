"""Quantization and dequantization of 8-bit values in steps (`vkq.numerics.steps`), with the bits of
`vkq.numerics.quantize`. Bytes are in their stored form (`vkq.numerics.stored`).

Scales and zero points are inputs of the steps, so a kernel can read them from push constants and serve every
layer.
"""

from __future__ import annotations

import math

import numpy as np

from .elementary import maximum, minimum, round_even
from .qparams import QParams
from .rational import divide
from .steps import HIDDEN, INFINITY, SIGN, Number, is_nan, magnitude

MOST = 512.0  # a larger quotient saturates, whatever the zero point
LARGE = 100  # for a scale outside [2^-100, 2^100], divide x, do not multiply by the reciprocal
ONE = 0x3F800000  # the bits of 1.0
MIDDLE, MIDDLE_BITS = 1.5 * 2.0**23, 0x4B400000  # adding it to a smaller float rounds the float to an integer


def dequantized(byte: Number, scale: Number, zero: Number) -> Number:
    """Return ``(byte - zero) * scale`` as float32, for an int32 byte in [-128, 127]; zero is a
    `signed_zero_point`."""
    return (byte.as_float() - zero.as_float()) * scale


def divides(q: QParams) -> bool:
    """Return True if a `Quantizer` with this scale must divide."""
    return not 2.0**-LARGE < q.scale < 2.0**LARGE


def reciprocal(q: QParams) -> float:
    """Return the float32 reciprocal of the scale's significand, which is in [1, 2)."""
    return float(np.float32(1) / np.float32(2 * math.frexp(q.scale)[0]))


class Quantizer:
    """Quantizes flushed float32 values: ``saturate(round_half_even(x / scale) + zero)``, as int32 in [-128,
    127]; NaN gives -128. zero: a `signed_zero_point`. reciprocal, divides: the results of the functions
    `reciprocal` and `divides`."""

    def __init__(self, scale: Number, reciprocal: Number, zero: Number, divides: bool):
        self._scale, self._reciprocal, self._zero, self._divides = scale, reciprocal, zero, divides
        self._power = ((scale.of(254, "u") - (scale.u >> 23)) << 23).f  # scale * power is in [1, 2)
        whole = ((scale.u & (HIDDEN - 1)) | ONE).f
        # The upper 12 bits of the significand. A tie has at most 11 bits, so the product of both is exact.
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
        """Return a result computed in fewer steps, and True if it is the correct one: not if x is near a tie,
        very large or NaN. Not for scales that divide (`divides`). x need not be flushed.

        A product with the reciprocal below 257 is within 2^-14 of the float32 quotient. A larger product, up
        to 2^21, is within 1/2 of it, and both saturate.
        """
        quotient = x * self._inverse
        whole = quotient + MIDDLE
        apart = magnitude(quotient - (whole - MIDDLE))
        # If x is NaN, *apart* is NaN, and the comparison of its bits is False; the first comparison then does
        # not matter.
        right = (magnitude(quotient) < 2.0**21) & (apart.u < x.of(0.5 - 2.0**-14).u)
        return self._saturated(whole.i - (self._zero.of(MIDDLE_BITS, "i") - self._zero)), right

    def _divided(self, x: Number) -> Number:
        quotient = round_even(divide(x, self._scale))
        return minimum(maximum(quotient, x.of(-MOST)), x.of(MOST)).as_int()

    def _nearest(self, x: Number) -> Number:
        """Return ``round_half_even(x / scale)``, clamped to [-512, 512], without a division.

        Let k be x * (1 / scale), truncated. The only tie near the quotient is k + 1/2; the difference x - (k
        + 1/2) * scale is exact if it is small. With u half an ulp of the tie, the float32 quotient equals the
        tie if the difference's magnitude is less than u * scale. It is never equal to that bound: x would be
        (tie +- u) * scale, and tie +- u is an odd 25-bit integer times a power of two, so the product would
        need more bits than float32's 24.
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
