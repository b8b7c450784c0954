"""Models whose scales are powers of two, so that many results are ties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .operators import Case, One, Random


def _scale(rng: Random) -> float:
    return 2.0 ** -int(rng.integers(2, 7))


def _odd(one: One) -> int:
    """Return an odd zero point: then ties are rounded differently before and after the zero point is
    added."""
    return one.zero() // 4 * 2 + 1


def product(rng: Random, dtype: str) -> Case:
    """Return a model of a MUL of all pairs of values."""
    one, every = One(rng, dtype), np.arange(256, dtype=np.uint8).view(dtype)
    scales, (a, b) = (_scale(rng), _scale(rng)), (every.reshape(256, 1), every.reshape(1, 256))
    inputs = [one.input(x.shape, s, one.zero(), x) for s, x in zip(scales, (a, b), strict=True)]
    y = one.output((256, 256), scales[0] * scales[1] * 2 ** int(rng.integers(5, 9)), _odd(one))
    one.w.operator("MUL", inputs, [y], "MulOptions", 2)
    return one.case(y)


def reduced(op: str) -> Callable[[Random, str], Case]:
    """Return a function that makes models of a MEAN or SUM over images or channels."""

    def make(rng: Random, dtype: str) -> Case:
        one, axes = One(rng, dtype), [1, 2] if rng.integers(0, 2) else [3]
        shape = (2, 4, 2, 40) if axes == [1, 2] else (2, 5, 8, 16)
        x_scale, kept = _scale(rng), [1 if i in axes else d for i, d in enumerate(shape)]
        x = one.input(shape, x_scale, one.zero())
        y_scale = x_scale * (16 if op == "SUM" else 1) / 2 ** int(rng.integers(0, 2))
        y = one.output(tuple(kept), y_scale, _odd(one))
        numbers = one.w.constant(np.array(axes, np.int32))
        one.w.operator(op, [x, numbers], [y], "ReducerOptions", 2, keep_dims=1)
        return one.case(y)

    return make


def function(op: str, kind: str = "", version: int = 1, **options: int) -> Callable[[Random, str], Case]:
    """Return a function that makes models of an element-wise function of all values."""

    def make(rng: Random, dtype: str) -> Case:
        one, every = One(rng, dtype), np.arange(256, dtype=np.uint8).view(dtype)
        scale = 2.0 ** -int(rng.integers(3, 6))
        x = one.input((256,), scale, int(rng.integers(-20, 20)) + (dtype == "uint8") * 128, every)
        y = one.output((256,), scale * 2 ** int(rng.integers(2, 4)), _odd(one))
        one.w.operator(op, [x], [y], kind, version, **options)
        return one.case(y)

    return make


TIES: dict[str, Callable[[Random, str], Case]] = {
    "MUL-ties": product, "MEAN-ties": reduced("MEAN"), "SUM-ties": reduced("SUM"),
    "ELU-ties": function("ELU"), "GELU-ties": function("GELU", "GeluOptions", 2, approximate=0),
    "GELU-tanh-ties": function("GELU", "GeluOptions", 2, approximate=1),
}  # fmt: skip
