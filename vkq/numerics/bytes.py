"""8-bit numbers in steps (`vkq.numerics.steps`): `vkq.numerics.quantize` of one number, bit for bit. Bytes
are in their stored form (`vkq.numerics.stored`)."""

from __future__ import annotations

import math

import numpy as np

from .elementary import maximum, minimum, round_even
from .qparams import QParams
from .rational import divide
from .steps import INFINITY, SIGN, Number, is_nan, magnitude
from .stored import signed_zero_point

MOST = 512.0  # a larger quotient saturates, whatever the zero point
LARGE = 100  # scales outside [2^-100, 2^100] are divided by, not multiplied with the reciprocal


def dequantized(byte: Number, q: QParams) -> Number:
    """``(byte - zero_point) * scale`` of an "i" in [-128, 127], as a float32."""
    return (byte - signed_zero_point(q)).as_float() * q.scale


def quantized(x: Number, q: QParams) -> Number:
    """``saturate(round_half_even(x / scale) + zero_point)`` of a flushed float32, as an "i" in [-128, 127];
    NaN gives the smallest."""
    zero = signed_zero_point(q)
    found = _nearest(x, q.scale) if 2.0**-LARGE < q.scale < 2.0**LARGE else _divided(x, q.scale)
    found = is_nan(x).where(x.of(-512, "i"), found) + zero
    return (found < -128).where(-128, (found > 127).where(127, found))


def _divided(x: Number, scale: float) -> Number:
    quotient = round_even(divide(x, x.of(scale)))
    return minimum(maximum(quotient, x.of(-MOST)), x.of(MOST)).as_int()


def _nearest(x: Number, scale: float) -> Number:
    """``round_half_even(x / scale)`` within [-512, 512], without a division.

    Let k be x * (1 / scale), truncated. The only tie near the quotient is k + 1/2, and x - (k + 1/2) * scale
    is exact if it is small. The float32 quotient equals the tie if this difference is less than scale times
    half a unit of the tie's last place. The difference is never equal to that bound, because the product of
    an odd 25-bit number has more than 24 bits.
    """
    power = 2.0 ** (1 - math.frexp(scale)[1])
    whole = np.float32(scale * power)  # in [1, 2)
    # The upper 12 bits; a tie has 11 bits, so the product of both is exact.
    upper = (whole.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    top = x.of(MOST * scale)
    a = (magnitude(x).u < top.u).where(magnitude(x), top) * power
    k = (a * float(np.float32(1) / whole)).as_int()
    tie = k.as_float() + 0.5
    more = (a - tie * float(upper)) - tie * float(whole - upper)
    half_unit = (tie & INFINITY) * float(whole * np.float32(2.0**-24))
    up, level = more > half_unit, more > -half_unit
    found = up.where(k + 1, level.where(k + (k & 1), k))
    return (x.u >= SIGN).where(-found, found)
