"""An int8 cache of keys and values: the quantization of a token's vector, in steps that give the same bits
on every device (`vkq.numerics.steps`).

A vector has d float32 numbers: the key or the value of a token for one head. It is stored as
``words_of(d)`` int32 words. Each word has four codes, the first in the lowest byte; codes after the last
number are 0. The last word is the float32 scale.

    scale = max|x| / 127                     a float32 division; 0 if the quotient is below 2^-126
    code  = round_half_even(x / scale)       -127 to 127; 0 if the scale is 0 or NaN
    x'    = code * scale

The scale of a vector with a NaN or an infinity is NaN, and so are the results of attention to it.

**Bound.** |x - x'| <= scale (1/2 + 2^-16), or 2^-119 if the scale is 0. Rounding x / scale to an integer
changes it by at most 1/2; rounding the quotient and the product, by at most 127 * 2^-24 each.
"""

from __future__ import annotations

import numpy as np

from .bytes import MIDDLE, MIDDLE_BITS
from .rational import divide
from .steps import INFINITY, Array, Number, computed, flushed, is_nan

LARGEST_CODE = 127.0
PER_WORD = 4


def words_of(width: int) -> int:
    """Return the number of words of a stored vector of *width* numbers.

    >>> words_of(64), words_of(5)
    (17, 3)
    """
    return -(-width // PER_WORD) + 1


def scale_of(largest: Number) -> Number:
    """Return the scale of a vector whose largest magnitude is *largest* (NaN if an element is NaN)."""
    return (largest.u >= INFINITY).where(np.nan, divide(largest, largest.of(LARGEST_CODE)))


def code(x: Number, scale: Number) -> Number:
    """Return the code of x as int32. Subnormal x must be flushed to 0 before the call."""
    empty = scale.u.equals(0) | is_nan(scale)
    return empty.where(0, (divide(x, scale) + MIDDLE).i - MIDDLE_BITS)


def number(word: Number, column: Number) -> Number:
    """Return the code of element *column* of a vector as float32. *word*: the word with the code."""
    return ((word.i << (24 - ((column & (PER_WORD - 1)) << 3)).i) >> 24).as_float()


def packed(x: Array) -> Array:
    """Quantize float32 vectors (..., d) to int32 words (..., ``words_of(d)``).

    >>> packed(np.array([[127, -1, 2, 0.5]], np.float32)).view(np.int8)[0, :4].tolist()
    [127, -1, 2, 0]
    """
    given = computed(flushed, x)
    width = x.shape[-1]
    scale = computed(scale_of, np.abs(given).max(-1, keepdims=True, initial=0))
    codes = np.zeros((*x.shape[:-1], PER_WORD * (words_of(width) - 1)), np.int8)
    codes[..., :width] = computed(code, given, scale)
    bits = np.ascontiguousarray(scale).view("<i4")
    return np.concatenate([codes.view("<i4"), bits], -1)


def unpacked(words: Array, width: int) -> tuple[Array, Array]:
    """Return the codes (..., width) as float32, and the scales (...), of stored vectors. Subnormal scales
    become 0."""
    whole = np.ascontiguousarray(words)
    codes = whole.view(np.int8)[..., :width].astype(np.float32)
    return codes, computed(flushed, whole[..., -1].view("<f4"))
