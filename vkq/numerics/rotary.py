"""Rotary embeddings: pairs (a, b) of a vector's elements are rotated to (a cos - b sin, b cos + a sin).
NumPy and devices compute the same steps; each product, sum and difference is rounded to float32."""

from __future__ import annotations

import numpy as np

from .rational import add, multiply, subtract
from .steps import Array, Number, computed, flushed


def first_of(a: Number, b: Number, cos: Number, sin: Number) -> Number:
    """Return a cos - b sin, the new first element of the pair (a, b)."""
    return subtract(multiply(flushed(a), flushed(cos)), multiply(flushed(b), flushed(sin)))


def second_of(a: Number, b: Number, cos: Number, sin: Number) -> Number:
    """Return b cos + a sin, the new second element of the pair (a, b)."""
    return add(multiply(flushed(b), flushed(cos)), multiply(flushed(a), flushed(sin)))


def rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Return x (..., d), float32, with its first 2 * width elements rotated. cos, sin: (..., width), which
    broadcast to x. Pair i is the elements i and i + width, or (*interleaved*) the elements 2 i and 2 i + 1.
    """
    width = cos.shape[-1]
    found: Array = x.copy()
    pairs = (slice(0, 2 * width, 2), slice(1, 2 * width, 2))
    one, two = pairs if interleaved else (slice(0, width), slice(width, 2 * width))
    a, b = x[..., one], x[..., two]
    c, s = (np.broadcast_to(angle, a.shape) for angle in (cos, sin))
    found[..., one], found[..., two] = computed(first_of, a, b, c, s), computed(second_of, a, b, c, s)
    return found
