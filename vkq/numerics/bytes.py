"""8-bit numbers in steps (`vkq.numerics.steps`): `vkq.numerics.quantize` of one number, bit for bit. The
bytes are those in memory (`vkq.numerics.stored`)."""

from __future__ import annotations

from .elementary import maximum, minimum, round_even
from .qparams import QParams
from .rational import divide
from .steps import Number, is_nan
from .stored import signed_zero_point


def dequantized(byte: Number, q: QParams) -> Number:
    """``(byte - zero_point) * scale`` of an "i" in [-128, 127], as a float32."""
    return (byte - signed_zero_point(q)).as_float() * q.scale


def quantized(x: Number, q: QParams) -> Number:
    """``saturate(round_half_even(x / scale) + zero_point)`` of a flushed float32, as an "i" in [-128, 127];
    NaN gives the smallest."""
    zero = signed_zero_point(q)
    low, high = x.of(-128.0 - zero), x.of(127.0 - zero)
    found = round_even(divide(x, x.of(q.scale)))
    bounded = minimum(maximum(is_nan(found).where(low, found), low), high)
    return bounded.as_int() + zero
