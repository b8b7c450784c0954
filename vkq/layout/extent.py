"""The description of an array on a device: shape, dtype, layout and quantization parameters. Only
`extent_of` converts a shape to the sizes of a layout."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, DTypeError
from ..numerics.qparams import QParams
from .pack import Layout, activation_layouts, layout

CONTIGUOUS = "contiguous"
MATRIX = "kPackedInt8_4H4W"
IMAGE = "kPackedInt8_4W4C"
BLOCKED = "kPackedInt8_16C"
# The layouts of images, with their names in shader variants.
PIXELS = {IMAGE: "4w4c", BLOCKED: "16c"}
NUMBERS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"), "int32": np.dtype("<i4"), "float16": np.dtype("<f2"),
}  # fmt: skip
BYTES = ("int8", "uint8")
Extent = tuple[int, int, int, int]


class Spec:
    """The description of an array: ``shape``, ``dtype``, ``layout`` and ``qparams``, as in `vkq.Tensor`.

    Specs are immutable and compared by value. They are keys of caches, so their hash is computed once.

    Raises ArgumentError or DTypeError if dtype, layout and rank do not fit together.

    >>> Spec((2, 5, 3, 3), "int8").layout, Spec((2, 5), "int8").nbytes
    ('kPackedInt8_4W4C', 32)
    """

    __slots__ = ("_hash", "_key", "_nbytes", "dtype", "layout", "qparams", "shape")

    def __init__(
        self, shape: Sequence[int], dtype: str, layout: str | None = None, qparams: QParams | None = None
    ):
        self.shape = tuple(int(d) for d in shape)
        self.dtype = str(dtype)
        self.layout = layout or default_layout(self.dtype, len(self.shape))
        self.qparams = qparams
        check_layout(self.dtype, self.layout, self.shape)
        self._key = (self.shape, self.dtype, self.layout, self.qparams)
        self._hash = hash(self._key)
        self._nbytes = -1  # cached size in bytes on the device; -1 until it is computed

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Spec) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{self.dtype} {self.shape} {self.layout}"

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def packed(self) -> Layout | None:
        """The packed layout, or None for a row-major array."""
        return None if self.layout == CONTIGUOUS else layout(self.layout)

    @property
    def extent(self) -> Extent:
        """The shape converted to the four sizes (n, c, h, w) of the layout; see `extent_of`."""
        return extent_of(self.shape, self.layout)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the array on the device, with the layout's padding."""
        if self._nbytes < 0:
            packed = self.packed
            itemsize = 4 if packed else NUMBERS[self.dtype].itemsize
            self._nbytes = 4 * packed.words(self.extent) if packed else -(-self.size * itemsize // 4) * 4
        return self._nbytes

    @property
    def folded(self) -> bool:
        """True if the axes are folded into rows (`extent_of`); False if the extent is the array's shape."""
        return len(self.shape) != 4 or self.layout == MATRIX

    @property
    def image_layout(self) -> str:
        """The array's layout if it is one of `PIXELS`, else kPackedInt8_4W4C."""
        return self.layout if self.layout in PIXELS else IMAGE


def default_layout(dtype: str, rank: int) -> str:
    """Return the default layout: for 8-bit dtypes, the image layout (`IMAGE`) of a four-dimensional array,
    else the matrix layout (`MATRIX`). For other dtypes, return `CONTIGUOUS`."""
    if dtype not in BYTES:
        return CONTIGUOUS
    return IMAGE if rank == 4 else MATRIX


def extent_of(shape: Sequence[int], layout_name: str) -> Extent:
    """Convert a shape to the sizes (n, c, h, w) of a layout. A 4-D shape is returned unchanged, unless the
    layout is `MATRIX`. In all other cases, all axes except the last are folded into rows: h is the number
    of rows, and w the number of elements of a row. For the layout `BLOCKED`, these are n and c instead."""
    if len(shape) == 4 and layout_name != MATRIX:
        n, c, h, w = shape
        return (n, c, h, w)
    rows, k = math.prod(shape[:-1]), shape[-1] if shape else 1
    return (rows, k, 1, 1) if layout_name == BLOCKED else (1, 1, rows, k)


@functools.cache
def layout_number(name: str) -> int:
    """Return the number of a layout in ``layout/any.glslh``."""
    return next(i for i, one in enumerate(activation_layouts()) if one.name == name)


def check_layout(dtype: str, layout_name: str, shape: Sequence[int]) -> None:
    """Raise ArgumentError or DTypeError if dtype, layout and rank do not fit together."""
    if min(shape, default=0) < 0:
        raise ArgumentError(f"Tensor: shape {tuple(shape)} has a negative dim; each must be at least 0")
    if dtype not in BYTES and dtype not in NUMBERS:
        raise DTypeError(f"Tensor: dtype {dtype} is not one of int8, uint8, float32, int32, float16")
    if (dtype in BYTES) == (layout_name == CONTIGUOUS):
        raise ArgumentError(
            f"Tensor: dtype {dtype} cannot have layout {layout_name}; 8-bit data is packed, other data"
            " contiguous"
        )
    if dtype in BYTES:
        dims = layout(layout_name).dims
        if dims != ("n", "c", "h", "w"):
            raise ArgumentError(
                f"Tensor: {layout_name} has dims {dims}; activations need a layout of n, c, h, w"
            )
        if layout_name == IMAGE and len(shape) != 4:
            raise ArgumentError(f"Tensor: {IMAGE} holds (N, C, H, W), the shape is {tuple(shape)}")
