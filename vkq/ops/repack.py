"""Layout changes, reshape and flatten of 8-bit tensors on the device, and views of float ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import ArgumentError
from ..runtime.tensor import CONTIGUOUS, Tensor, default_layout
from ..shader.catalog import catalog
from .quantize import layout_number


def reshape(x: Tensor, shape: Sequence[int], layout: str | None = None) -> Tensor:
    """The same elements in row-major order with another shape; one dim may be -1. 8-bit data is repacked on
    the device.

    *layout* is the result's, by default kPackedInt8_4W4C for four dims and kPackedInt8_4H4W otherwise.
    """
    dims = _resolve(x, tuple(int(d) for d in shape))
    if x.layout == CONTIGUOUS:
        return Tensor(x.device, dims, x.dtype, CONTIGUOUS, x.qparams, x.buffer)
    y = Tensor(x.device, dims, x.dtype, layout or default_layout(x.dtype, len(dims)), x.qparams)
    if y.layout == x.layout and y.extent == x.extent:
        y.buffer = x.buffer
        return y
    if x.size:
        constants = {"X_LAYOUT": layout_number(x.layout), "Y_LAYOUT": layout_number(y.layout)}
        program = x.device.program(catalog().find("repack_q8__word"), constants)
        push: dict[str, int | float] = {"words": y.nbytes // 4}
        push |= {f"x_{d}": v for d, v in zip("nchw", x.extent, strict=True)}
        push |= {f"y_{d}": v for d, v in zip("nchw", y.extent, strict=True)}
        with x.device.operation() as recording:
            recording.dispatch(program, [x.buffer, y.buffer], push)
    return y


def flatten(x: Tensor) -> Tensor:
    """(N, ...) as (N, product of the rest): what stands between convolutions and a linear layer."""
    if not x.shape:
        raise ArgumentError("flatten: x has no dims; it must have at least one")
    return reshape(x, (x.shape[0], math.prod(x.shape[1:])))


def to_layout(x: Tensor, layout: str) -> Tensor:
    """The tensor in another packed layout; itself where it has it."""
    return x if x.layout == layout else reshape(x, x.shape, layout)


def _resolve(x: Tensor, dims: tuple[int, ...]) -> tuple[int, ...]:
    free = [i for i, d in enumerate(dims) if d == -1]
    known = math.prod(d for d in dims if d != -1)
    if len(free) == 1 and known and x.size % known == 0:
        dims = (*dims[: free[0]], x.size // known, *dims[free[0] + 1 :])
    if min(dims, default=0) < 0 or math.prod(dims) != x.size:
        raise ArgumentError(
            f"reshape: {x.shape} has {x.size} elements and cannot become {dims}; the products must be equal"
        )
    return dims
