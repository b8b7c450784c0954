"""Reshape and flatten: 8-bit tensors are repacked on the device, float ones are views."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..arguments import checked
from ..errors import ArgumentError
from ..kernels import repack as kernel
from ..layout.extent import Spec
from ..runtime.eager import run
from ..runtime.tensor import Tensor
from . import operand


@checked
def reshape(
    x: Tensor, shape: Sequence[int], layout: str | None = None, *, out: Tensor | None = None
) -> Tensor:
    """The same elements in row-major order with another shape; one dim may be -1. 8-bit data is repacked on
    the device.

    *layout* is the result's, by default kPackedInt8_4W4C for four dims and kPackedInt8_4H4W otherwise. *out*
    is a Tensor to write into, as for every operator; it is returned then.
    """
    dims = resolved(x.spec, tuple(int(d) for d in shape))
    return run(operand.planned(x.device, kernel.reshaped, [x.spec], (dims, layout)), [x], out, "reshape")


@checked
def flatten(x: Tensor) -> Tensor:
    """(N, ...) as (N, product of the rest): what stands between convolutions and a linear layer."""
    if not x.shape:
        raise ArgumentError("flatten: x has no dims; it must have at least one")
    return reshape(x, (x.shape[0], math.prod(x.shape[1:])))


def to_layout(x: Tensor, layout: str) -> Tensor:
    """The tensor in another packed layout; itself where it has it."""
    return x if x.layout == layout else reshape(x, x.shape, layout)


def resolved(x: Spec, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dims with -1 found out. Raises ArgumentError where they do not hold as many elements."""
    free = [i for i, d in enumerate(dims) if d == -1]
    known = math.prod(d for d in dims if d != -1)
    if len(free) == 1 and known and x.size % known == 0:
        dims = (*dims[: free[0]], x.size // known, *dims[free[0] + 1 :])
    if min(dims, default=0) < 0 or math.prod(dims) != x.size:
        raise ArgumentError(
            f"reshape: {x.shape} has {x.size} elements and cannot become {dims}; the products must be equal"
        )
    return dims
