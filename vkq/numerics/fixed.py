"""LiteRT's multiplication by a fixed-point factor, in integer steps. LiteRT's own kernels requantize the
int32 sums of a layer with it; vkq's layers and XNNPACK multiply the sums by a float32 instead."""

from __future__ import annotations

from .steps import Number

HIGH_HALF = 1 << 30
LEAST_SHIFT = -31


def coded(shift: int, up: bool = False) -> int:
    """Return one integer that encodes a shift (-31 to 30) and the rounding of ties: up if *up*, else away
    from zero."""
    return 2 * (shift - LEAST_SHIFT) + up


def fixed_product(x: Number, whole: Number, code: Number) -> Number:
    """Return ``x * whole * 2**(shift - 31)`` of int32 values, rounded twice: after the multiplication by
    whole / 2**31, and after the right shift. *whole* is 0 or has 31 bits. *code* encodes the shift and the
    rounding of ties (`coded`)."""
    shift, up = (code >> 1) + LEAST_SHIFT, code & 1
    moved = x << (shift < 0).where(0, shift)
    negative = moved < 0
    size, factor = negative.where(0 - moved, moved).u, whole.u
    low, high = size * factor, size.high(factor)
    # adding half a unit rounds to nearest; ties are rounded up
    total = low + negative.where(HIGH_HALF - 1, HIGH_HALF, "u")
    high = high + (total < low).where(1, 0, "u")
    product = ((high << 1) | (total >> 31)).i
    product = negative.where(0 - product, product)
    right = (shift < 0).where(0 - shift, 0)
    mask = (x.of(1) << right) - 1
    threshold = (mask >> 1) + (product < 0).where(1 - up, 0)
    return (product >> right) + (threshold < (product & mask)).where(1, 0, "i")
