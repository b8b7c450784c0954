"""Models of comparisons, selections and lookups, and of quotients and square roots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .operators import Case, One, Random


def _shapes(one: One) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return an image's shape, and a shape with some axes of size 1 that broadcasts to it."""
    shape = one.shape()
    return shape, tuple(d if kept else 1 for d, kept in zip(shape, one.rng.integers(0, 3, 4), strict=True))


def divided(rng: Random, dtype: str) -> Case:
    """Return a model of a DIV, whose divisors are not 0."""
    one = One(rng, dtype)
    (shape, other), zero = _shapes(one), one.zero()
    scales, divisors = [one.scale(-2, 1), one.scale(-2, 1)], one.numbers(other)
    top = np.iinfo(dtype).max
    divisors[divisors == zero] = zero - 1 if zero == top else zero + 1
    x, z = one.input(shape, scales[0], one.zero()), one.input(other, scales[1], zero, divisors)
    spread = float(rng.choice([0.01, 0.05, 0.3]))
    y = one.output(shape, float(np.float32(scales[0] / scales[1] * spread)), one.zero())
    activation = int(rng.choice([0, 0, 1, 2, 3]))
    one.w.operator("DIV", [x, z], [y], "DivOptions", 2, fused_activation_function=activation)
    return one.case(y)


def rooted(rng: Random, dtype: str) -> Case:
    """Return a model of a SQRT of values that are not negative."""
    one = One(rng, dtype)
    shape, scale, zero = one.shape(), one.scale(), int(rng.integers(-128, 100))
    x = one.input(shape, scale, zero, np.maximum(one.numbers(shape), np.int8(zero)))
    top = (127 - zero) * scale
    y = one.output(shape, float(np.float32(top**0.5 / rng.integers(100, 300))), one.zero())
    one.w.operator("SQRT", [x], [y], "", 2)
    return one.case(y)


def compared(op: str) -> Callable[[Random, str], Case]:
    """Return a function that makes models of a comparison. The resulting flags select from two tensors. The
    scales of the compared operands are equal or similar, so that many values are equal."""

    def make(rng: Random, dtype: str) -> Case:
        one = One(rng, dtype)
        (shape, other), zero, scale = _shapes(one), one.zero(), one.scale()
        near = float(np.float32(scale * rng.choice([1, 1, 0.5, 1.01])))
        x, z = one.input(shape, scale, zero), one.input(other, near, zero if near == scale else one.zero())
        flags = one.w.tensor(shape, "bool")
        one.w.operator(op, [x, z], [flags], "", 2)
        values = [one.input(shape, 0.5, 3), one.w.constant(one.numbers(()), 0.5, 3)]
        y = one.output(shape, 0.5, 3)
        one.w.operator("SELECT_V2", [flags, *values], [y])
        return one.case(y)

    return make


def selected(rng: Random, dtype: str) -> Case:
    """Return a model of a SELECT with a flag for each element, for each slice along the first axis, or for
    all elements."""
    one = One(rng, dtype)
    shape, scale, zero, rank = one.shape(), one.scale(), one.zero(), int(rng.choice([4, 1, 0]))
    numbers = [one.input(shape[:rank], scale, zero), one.w.constant(one.numbers(()), scale, zero)]
    flags = one.w.tensor(shape[:rank], "bool")
    one.w.operator("GREATER_EQUAL", numbers, [flags], "", 2)
    values, y = [one.input(shape, 0.5, 3) for _ in range(2)], one.output(shape, 0.5, 3)
    one.w.operator("SELECT", [flags, *values], [y])
    return one.case(y)


def looked_up(rng: Random, dtype: str) -> Case:
    """Return a model with two EMBEDDING_LOOKUPs: of 8-bit rows, and (only in int8 models) of int8 rows with
    float results, which have one scale for each row or one for all rows."""
    one = One(rng, dtype)
    rows, width, count = (int(v) for v in rng.integers(2, 20, 3))
    scale, zero = one.scale(), one.zero()
    places = one.w.tensor((count,), "int32")
    one.inputs, one.arrays = [places], [rng.integers(0, rows, count).astype(np.int32)]
    table = one.w.constant(one.numbers((rows, width)), scale, zero)
    y = one.output((count, width), scale, zero)
    one.w.operator("EMBEDDING_LOOKUP", [places, table], [y], "", 3)
    if dtype == "uint8":
        return one.case(y)
    scales = np.float32(10 ** rng.uniform(-3, 0, rows if rng.integers(0, 2) else 1))
    table = one.w.constant(one.numbers((rows, 3, width)), scales)
    real = one.w.tensor((count, 3, width), "float32")
    one.w.operator("EMBEDDING_LOOKUP", [places, table], [real], "", 3)
    return one.case(y, real)


def gathered(rng: Random, dtype: str) -> Case:
    """Return a model of a GATHER_ND of elements or slices."""
    one = One(rng, dtype)
    shape, scale, zero, depth = one.shape(), one.scale(), one.zero(), int(rng.integers(1, 5))
    count = tuple(int(v) for v in rng.integers(1, 5, int(rng.integers(1, 3))))
    places = np.stack([rng.integers(0, d, count) for d in shape[:depth]], -1).astype(np.int32)
    x, y = one.input(shape, scale, zero), one.output((*count, *shape[depth:]), scale, zero)
    one.w.operator("GATHER_ND", [x, one.w.constant(places)], [y], "", 5)
    return one.case(y)


CHOSEN: dict[str, Callable[[Random, str], Case]] = {
    "DIV": divided, "SQRT": rooted, "SELECT": selected, "EMBEDDING_LOOKUP": looked_up, "GATHER_ND": gathered,
    **{op: compared(op) for op in ("GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "EQUAL", "NOT_EQUAL")},
}  # fmt: skip
