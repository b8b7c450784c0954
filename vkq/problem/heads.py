"""Heads of attention in two layouts. Layout 1: a batch of matrices, (B, heads, rows, columns). Layout 2:
the columns of all heads concatenated, (B, rows, heads * columns), as linear layers read and write them."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

# the number of concatenated heads in each operand and in the result of a product
Heads = tuple[int, int, int]
ONE_EACH: Heads = (1, 1, 1)
SWAPPED = (0, 2, 1, 3)  # permutation from (B, rows, heads, columns) to (B, heads, rows, columns), and back
TURNED = (0, 2, 3, 1)  # permutation from (B, rows, heads, columns) to (B, heads, columns, rows)
Array = npt.NDArray[Any]


def apart(shape: tuple[int, ...], heads: int) -> tuple[int, ...]:
    """Return the layout-1 shape of an array with concatenated heads (layout 2); unchanged if *heads* is 1."""
    return shape if heads == 1 else (shape[0], heads, shape[1], shape[2] // heads)


def together(shape: tuple[int, ...], heads: int) -> tuple[int, ...]:
    """Return the layout-2 shape: the inverse of `apart`."""
    return shape if heads == 1 else (shape[0], shape[2], heads * shape[3])


def taken_apart(x: Array, heads: int) -> Array:
    """Separate the concatenated heads of an array: return a batch of matrices (layout 1)."""
    n, rows, columns = x.shape if heads > 1 else (0, 0, 0)
    return x if heads == 1 else x.reshape(n, rows, heads, columns // heads).transpose(SWAPPED)


def put_together(x: Array, heads: int) -> Array:
    """Concatenate the heads of a batch of matrices: the inverse of `taken_apart`."""
    return x if heads == 1 else x.transpose(SWAPPED).reshape(together(x.shape, heads))
