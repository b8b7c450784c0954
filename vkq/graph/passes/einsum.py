"""Rewrites Einsum as matrix products of two operands at a time. An axis of both operands becomes a batch axis
if the result or a later operand also has this axis. Otherwise the product is summed over the axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .words import FLOATS, Words

DOTS = "..."
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def einsum(w: Words) -> bool:
    terms = _terms(str(w.attributes["equation"]), [len(w.of(name).shape) for name in w.node.inputs])
    dtype = w.spec(0).dtype
    if terms is None or dtype not in FLOATS or any(0 in w.of(name).shape for name in w.node.inputs):
        return False
    (*inputs, result), sizes = terms, dict[str, int]()
    values: list[tuple[str, str]] = []
    for name, axes in zip(w.node.inputs, inputs, strict=True):
        x, left = _diagonal(w, name, axes)
        for axis, size in zip(left, w.of(x).shape, strict=True):
            sizes[axis] = max(size, sizes.get(axis, 1))
        values.append((x, left))
    while len(values) > 1:
        one, two, *rest = values
        later = {*result, *(axis for _, axes in rest for axis in axes)}
        values = [_product(w, one, two, later, sizes), *rest]
    x, axes = values[0]
    x, axes = _without(w, x, axes, set(result))
    return _ordered(w, x, axes, result, sizes)


def _terms(equation: str, ranks: Sequence[int]) -> list[str] | None:
    """Return the letters of the axes of each operand and of the result, or None for an invalid equation. An
    ellipsis becomes unused letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if len(operands) != len(ranks):
        return None
    free = [letter for letter in LETTERS if letter not in equation]
    pairs = list(zip(operands, ranks, strict=True))
    dots = "".join(free[: max((r - len(o.replace(DOTS, "")) for o, r in pairs if DOTS in o), default=0)])
    found = []
    for operand, rank in pairs:
        count = rank - len(operand.replace(DOTS, ""))
        if count < 0 or (count and DOTS not in operand):
            return None
        found.append(operand.replace(DOTS, dots[len(dots) - count :]))
    if not arrow:
        every = "".join(operands).replace(DOTS, "")
        right = DOTS * (DOTS in left) + "".join(sorted(a for a in set(every) if every.count(a) == 1))
    right = right.replace(DOTS, dots)
    if len(set(right)) < len(right) or not set(right) <= set("".join(found)):
        return None
    return [*found, right]


def _diagonal(w: Words, x: str, axes: str) -> tuple[str, str]:
    """Emit nodes that select the diagonal of an operand along axes with equal letters. Return the result's
    name, and the remaining letters."""
    for axis in axes:
        while axes.count(axis) > 1:
            i = axes.index(axis)
            j = axes.index(axis, i + 1)
            rank, size = len(axes), w.of(x).shape[i]
            perm = (i, j, *(k for k in range(rank) if k not in (i, j)))
            moved = w.emit("Transpose", [x], perm=perm)
            flat = w.reshape(moved, (size * size, *w.of(moved).shape[2:]))
            x = w.emit("Gather", [flat, w.constant(np.arange(size) * (size + 1), "int64")], axis=0)
            axes = axis + "".join(a for k, a in enumerate(axes) if k not in (i, j))
    return x, axes


def _without(w: Words, x: str, axes: str, kept: set[str]) -> tuple[str, str]:
    """Sum an operand over its axes that are not in *kept*. Return the result and its remaining axes."""
    gone = [i for i, axis in enumerate(axes) if axis not in kept]
    if gone:
        x = w.emit("ReduceSum", [x, w.constant(gone, "int64")], keepdims=0)
    return x, "".join(axis for axis in axes if axis in kept)


def _product(
    w: Words, one: tuple[str, str], two: tuple[str, str], later: set[str], sizes: dict[str, int]
) -> tuple[str, str]:
    """Multiply two operands: by a MatMul of (batch, rows, summed) and (batch, summed, columns), or element by
    element if no axis is summed. An operand, and also the returned product, is a pair (name, axes as
    letters). *later*: the axes that the result or later operands have. *sizes*: the size of each axis."""
    a, b = _without(w, *one, later | set(two[1])), _without(w, *two, later | set(one[1]))
    both = [axis for axis in a[1] if axis in b[1]]
    batch, added = ("".join(x for x in both if (x in later) == kept) for kept in (True, False))
    rows, columns = ("".join(x for x in axes if x not in both) for axes in (a[1], b[1]))
    if not added:  # no axis is summed: multiply element by element
        axes = batch + rows + columns
        left = _aligned(w, a, axes, sizes, batch + rows)
        right = _aligned(w, b, axes, sizes, batch + columns)
        return w.emit("Mul", [left, right]), axes
    shapes = [_shape(group, sizes) for group in (batch, rows, added, columns)]
    left = _permuted(w, a, batch + rows + added, sizes)
    right = _permuted(w, b, batch + added + columns, sizes)
    m, k, n = (math.prod(shape) for shape in shapes[1:])
    left, right = w.reshape(left, (*shapes[0], m, k)), w.reshape(right, (*shapes[0], k, n))
    y = w.emit("MatMul", [left, right])
    return w.reshape(y, (*shapes[0], *shapes[1], *shapes[3])), batch + rows + columns


def _shape(axes: str, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(sizes[axis] for axis in axes)


def _permuted(w: Words, value: tuple[str, str], axes: str, sizes: dict[str, int]) -> str:
    """Emit nodes that bring an operand's axes into the order *axes* and repeat axes of length 1 to their
    full size. Return the result's name."""
    x, own = value
    if own != axes:
        x = w.emit("Transpose", [x], perm=tuple(own.index(axis) for axis in axes))
    shape = _shape(axes, sizes)
    return x if w.of(x).shape == shape else w.emit("Expand", [x, w.constant(list(shape), "int64")])


def _aligned(w: Words, value: tuple[str, str], axes: str, sizes: dict[str, int], own: str) -> str:
    """Emit nodes that bring an operand's axes into the order *own* and insert axes of length 1, so that the
    result broadcasts to *axes*. Return the result's name."""
    x = _permuted(w, value, own, sizes)
    return w.reshape(x, [sizes[axis] if axis in own else 1 for axis in axes])


def _ordered(w: Words, x: str, axes: str, result: str, sizes: dict[str, int]) -> bool:
    x = _permuted(w, (x, axes), result, sizes)
    return w.result(x)
