"""Models whose scales are powers of two, so that many results lie halfway between two numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .operators import Case, One, Random


def _scale(rng: Random) -> float:
    return 2.0 ** -int(rng.integers(2, 7))


def _odd(one: One) -> int:
    """Return an odd zero point: the nearest even number with it is another one than without it."""
    return one.zero() // 4 * 2 + 1


def product(rng: Random, dtype: str) -> Case:
    """Return a MUL of all pairs of numbers."""
    one, every = One(rng, dtype), np.arange(256, dtype=np.uint8).view(dtype)
    scales, (a, b) = (_scale(rng), _scale(rng)), (every.reshape(256, 1), every.reshape(1, 256))
    inputs = [one.input(x.shape, s, one.zero(), x) for s, x in zip(scales, (a, b), strict=True)]
    y = one.output((256, 256), scales[0] * scales[1] * 2 ** int(rng.integers(5, 9)), _odd(one))
    one.w.operator("MUL", inputs, [y], "MulOptions", 2)
    return one.case(y)


TIES: dict[str, Callable[[Random, str], Case]] = {"MUL-ties": product}
