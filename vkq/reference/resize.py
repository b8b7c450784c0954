"""The exact NumPy oracle of Resize on 8-bit images. `vkq.problem.resize` chooses the input pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.numerics.qparams import QParams
from vkq.numerics.quantize import dequantize, quantize
from vkq.problem.resize import FIXED_BITS, Resize

Array = npt.NDArray[Any]


def resize(x: Array, how: Resize) -> Array:
    """Return the resized image, of the dtype of x (int8 or uint8), as ONNX Runtime's Resize of 8-bit data
    does. If the size does not change, return x.

    linear: ``(dy2 dx2) x11 + (dy2 dx1) x12 + (dy1 dx2) x21 + (dy1 dx1) x22`` in float32, added from the
    left. x12 is the pixel in the first of the two rows and the second of the two columns; dy1 and dy2 are the
    distances from the two rows, dx1 and dx2 from the two columns. *how.rounding*:

    - "truncate" (ONNX Runtime's) cuts off the fraction.
    - "even" rounds half to even.
    - "fixed" and "fixed_10" compute in integers. The weights of "fixed" are multiples of 2**-11, as in
      XNNPACK; those of "fixed_10" are multiples of 2**-10, as in LiteRT's own kernel.

    >>> resize(np.array([[[[0, 10]]]], np.int8), Resize.of((1, 1, 1, 2), (1, 4), mode="linear")).tolist()
    [[[[0, 2, 7, 10]]]]
    """
    if how.y_shape == how.x_shape:
        return np.array(x)
    if how.mode == "nearest":
        return np.asarray(x[:, :, how.nearest(0)][..., how.nearest(1)])
    if how.rounding.startswith("fixed"):
        return _fixed(x, how)
    value = interpolate(x, how)
    info = np.iinfo(x.dtype)
    rounded = np.trunc(value) if how.rounding == "truncate" else np.rint(value)
    return np.asarray(np.clip(rounded, info.min, info.max).astype(x.dtype))


def _fixed(x: Array, how: Resize) -> Array:
    """Return the image resized linearly with integer weights of 11 bits. Halves are rounded up; with the
    rounding "fixed_10", away from zero."""
    (y1, y2, dy), (x1, x2, dx) = how.fixed(0), how.fixed(1)
    whole, bits = x.astype(np.int64), FIXED_BITS
    lines: Array = (whole[..., x1] << bits) + (whole[..., x2] - whole[..., x1]) * dx
    total: Array = (lines[:, :, y1] << bits) + (lines[:, :, y2] - lines[:, :, y1]) * dy[:, None]
    down = (total < 0) & (how.rounding == "fixed_10")
    return np.asarray(((total + (1 << (2 * bits - 1)) - down) >> (2 * bits)).astype(x.dtype))


def resize_real(x: Array, how: Resize, xq: QParams, yq: QParams) -> Array:
    """Return the result of DequantizeLinear (xq), linear Resize and QuantizeLinear (yq) as in ONNX Runtime:
    in float32 steps, with the quotient by the scale rounded half to even."""
    return quantize(interpolate(dequantize(x, xq), how), yq)


def interpolate(x: Array, how: Resize) -> npt.NDArray[np.float32]:
    """Return the results of linear interpolation as float32, before rounding to integers."""
    (y1, y2, dy1, dy2), (x1, x2, dx1, dx2) = how.linear(0), how.linear(1)
    real = x.astype(np.float32)
    terms = [
        (dy[:, None] * dx[None]) * real[:, :, rows][..., columns]
        for dy, rows in ((dy2, y1), (dy1, y2))
        for dx, columns in ((dx2, x1), (dx1, x2))
    ]
    value = np.asarray(((terms[0] + terms[1]) + terms[2]) + terms[3], np.float32)
    return _of_lines(value, terms[0], terms[1]) if how.lines else value


def _of_lines(half: npt.NDArray[np.float32], a: Array, b: Array) -> npt.NDArray[np.float32]:
    """Return the interpolated values of 1-D data (N, C, 1, L) with the roundings of ONNX Runtime, which
    treats the data as a volume.

    a and b are half of the first and of the second column's term, and *half* is a + b + a + b, added in
    this order. If neither n nor c is the last index of its axis, the result is 2 (a + b). If one of them
    is, it is *half*. If both are, it is half the sum of four a and four b.
    """
    n, c = (np.arange(size) == size - 1 for size in half.shape[:2])
    last = n[:, None, None, None].astype(np.int32) + c[:, None, None]
    quarter = np.float32(0.5) * ((((half + a) + b) + a) + b)
    return np.where(last == 0, np.float32(2) * (a + b), np.where(last == 1, half, quarter))
