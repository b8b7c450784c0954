"""Heads of attention: a batch of matrices (B, heads, rows, columns), or the same with the columns of a B's
matrices side by side, (B, rows, heads * columns), as linear layers make and read them."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

# Numbers of heads, which lie side by side in the operands and in the result of a product.
Heads = tuple[int, int, int]
ONE_EACH: Heads = (1, 1, 1)
SWAPPED = (0, 2, 1, 3)  # permutation from (B, rows, heads, columns) to (B, heads, rows, columns), and back
TURNED = (0, 2, 3, 1)  # permutation from (B, rows, heads, columns) to (B, heads, columns, rows)
Array = npt.NDArray[Any]


def apart(shape: tuple[int, ...], heads: int) -> tuple[int, ...]:
    """Return the shape of the matrices of an array that has the columns of *heads* side by side; with 1 the
    shape itself."""
    return shape if heads == 1 else (shape[0], heads, shape[1], shape[2] // heads)


def together(shape: tuple[int, ...], heads: int) -> tuple[int, ...]:
    """Return the shape of the array that `apart` takes."""
    return shape if heads == 1 else (shape[0], shape[2], heads * shape[3])


def taken_apart(x: Array, heads: int) -> Array:
    """Return the matrices of an array that has the columns of *heads* side by side."""
    n, rows, columns = x.shape if heads > 1 else (0, 0, 0)
    return x if heads == 1 else x.reshape(n, rows, heads, columns // heads).transpose(SWAPPED)


def put_together(x: Array, heads: int) -> Array:
    """Undo `taken_apart`."""
    return x if heads == 1 else x.transpose(SWAPPED).reshape(together(x.shape, heads))
