"""Division by push constants, computed as a multiplication and a shift (shaders/common/divided.glslh)."""

from __future__ import annotations

from ..layout.extent import BLOCKED, Spec


def divisor(name: str, d: int) -> dict[str, int | float]:
    """Return the push constants ``<name>_multiplier`` and ``<name>_shift`` for dividing n < 2**31 by d
    (1 to 2**31): ``n // d == ((n * multiplier >> 32) + n) >> shift``.

    The multiplier is that of Granlund and Montgomery, "Division by invariant integers using multiplication"
    (1994), section 4, minus 2**32.

    >>> found = divisor("by", 7)
    >>> [((n * found["by_multiplier"] >> 32) + n) >> found["by_shift"] for n in (6, 7, 2**31 - 1)]
    [0, 1, 306783378]
    """
    shift = (d - 1).bit_length()
    return {f"{name}_multiplier": ((1 << 32) * ((1 << shift) - d)) // d + 1, f"{name}_shift": shift}


def divisors(*numbers: int) -> dict[str, int | float]:
    """Return the push constants for dividing by up to three numbers, named ``first``, ``second`` and
    ``third``."""
    found: dict[str, int | float] = {}
    for name, d in zip(("first", "second", "third"), (*numbers, 1, 1, 1), strict=False):
        found |= divisor(name, d)
    return found


def of_pixels(y: Spec, one_pixel: bool = False) -> dict[str, int | float]:
    """Return the divisors for the position of a vector in images (common/pixels.glslh); with *one_pixel*,
    for the vector's image and block of channels only."""
    n, c, h, w = (max(size, 1) for size in y.shape)
    if y.layout == BLOCKED:
        return divisors(h * w, n) if one_pixel else divisors(w, h, n)
    blocks, columns = -(-c // 4), -(-w // 4)
    return divisors(blocks, h * columns) if one_pixel else divisors(blocks, columns, h)
