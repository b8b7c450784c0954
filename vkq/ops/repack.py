"""Reshape and flatten: 8-bit tensors are repacked on the device, float tensors are not copied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arguments import checked
from ..errors import ArgumentError
from ..kernels import repack as kernel
from ..runtime import tensor
from ..runtime.eager import run
from ..runtime.tensor import Tensor
from . import operand
from .operand import Operand


@checked
def reshape(x: Operand, shape: Sequence[int], layout: str | None = None, *, out: Tensor | None = None) -> Any:
    """Return the same elements in row-major order with another shape. 8-bit data of a Tensor is repacked on
    the device. A NumPy array is reshaped by NumPy.

    Args:
        shape: one dim may be -1.
        layout: the layout of a resulting Tensor, by default kPackedInt8_4W4C for four dims, else
            kPackedInt8_4H4W.
        out: a Tensor to write into and return, as for every operator.

    >>> reshape(np.zeros((2, 3), np.int8), (3, -1)).shape
    (3, 2)
    """
    dims = resolved(np.shape(x), tuple(int(d) for d in shape))
    if not isinstance(x, Tensor):
        if out is None:
            return np.asarray(x).reshape(dims)
        x = Tensor.from_numpy(x, out.device)
    return run(operand.planned(x.device, kernel.reshaped, [x.spec], (dims, layout)), [x], out, "reshape")


@checked
def flatten(x: Operand) -> Any:
    """Reshape x (N, ...) to (N, product of the other sizes), for a linear layer after convolutions.

    >>> flatten(np.zeros((2, 3, 5), np.int8)).shape
    (2, 15)
    """
    shape = np.shape(x)
    if not shape:
        raise ArgumentError("flatten: x has no dims; it must have at least one")
    return reshape(x, (shape[0], math.prod(shape[1:])))


tensor.reshaped = reshape


def to_layout(x: Tensor, layout: str) -> Tensor:
    """Return the tensor in another packed layout, or the tensor itself if it has this layout."""
    return x if x.layout == layout else reshape(x, x.shape, layout)


def resolved(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return *dims* with -1 replaced by the size that the other dims imply. Raises ArgumentError if the two
    shapes have different numbers of elements."""
    size = math.prod(shape)
    free = [i for i, d in enumerate(dims) if d == -1]
    known = math.prod(d for d in dims if d != -1)
    if len(free) == 1 and known and size % known == 0:
        dims = (*dims[: free[0]], size // known, *dims[free[0] + 1 :])
    if min(dims, default=0) < 0 or math.prod(dims) != size:
        raise ArgumentError(
            f"reshape: {shape} has {size} elements and cannot become {dims}; the products must be equal"
        )
    return dims
