"""The output pixels of a convolution as rows of a matrix product, and the push constants of its window."""

from __future__ import annotations

from ..problem.conv2d import Conv2dProblem
from .gemm import Rows


def pixel_rows(p: Conv2dProblem, unit: int) -> Rows:
    """Return the output pixels as rows of the product. Each image row is padded to a multiple of *unit*
    rows."""
    return Rows(p.n * p.oh, p.oh, p.ow, -(-p.ow // unit) * unit)


def window_constants(p: Conv2dProblem) -> dict[str, int | float]:
    """Return the push constants that map an output pixel and a tap to an input pixel."""
    return {
        "c": p.ic, "h": p.h, "w": p.w, "kw": p.kw, "stride_h": p.stride[0], "stride_w": p.stride[1],
        "pad_t": p.padding[0], "pad_l": p.padding[1], "dilation_h": p.dilation[0],
        "dilation_w": p.dilation[1], "images": p.n,
    }  # fmt: skip
