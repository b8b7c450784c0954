"""``vkq.Tensor``: an array on a device, with its dtype and layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..layout.pack import Layout, layout
from ..numerics.qparams import QParams
from .buffer import Buffer
from .device import Device

CONTIGUOUS = "contiguous"
MATRIX = "kPackedInt8_4H4W"
IMAGE = "kPackedInt8_4W4C"
BLOCKED = "kPackedInt8_16C"
_NUMBERS = {"float32": np.dtype("<f4"), "int32": np.dtype("<i4")}
_BYTES = ("int8", "uint8")


class Tensor:
    """An array in device memory.

    ``shape`` is the logical shape; ``dtype`` is "int8", "uint8", "float32" or "int32"; ``layout`` is the name
    of a packed layout for 8-bit data (kPackedInt8_4W4C for images (N, C, H, W), kPackedInt8_4H4W for matrices
    (..., K), kPackedInt8_16C for both, where four axes are an image) and "contiguous" (row-major) for the
    others. ``qparams`` says what 8-bit values mean, where that is known; a layer refuses an input with other
    parameters than its own.

    uint8 is kept as int8, moved by 128: x and x - 128 with the zero point moved alike are the same number.

    Made by ``Tensor.from_numpy`` or as the result of a layer; ``numpy()`` reads it back.
    """

    __slots__ = ("buffer", "device", "dtype", "layout", "qparams", "shape")

    def __init__(
        self,
        device: Device,
        shape: Sequence[int],
        dtype: str,
        layout: str | None = None,
        qparams: QParams | None = None,
        buffer: Buffer | None = None,
    ):
        self.device = device
        self.shape = tuple(int(d) for d in shape)
        self.dtype = str(dtype)
        self.layout = layout or default_layout(self.dtype, len(self.shape))
        self.qparams = qparams
        check_layout(self.dtype, self.layout, self.shape)
        self.buffer = buffer or device.allocate(self.nbytes)

    @classmethod
    def from_numpy(
        cls, array: npt.ArrayLike, device: Device, layout: str | None = None, qparams: QParams | None = None
    ) -> Tensor:
        """Copies an array (any strides and byte order; never modified) to the device.

        Raises DTypeError for other dtypes than int8, uint8, float32 and int32 (float16 and float64 are not
        narrowed silently).
        """
        data = np.asarray(array)
        name = data.dtype.newbyteorder("=").name
        if name not in _BYTES and name not in _NUMBERS:
            raise DTypeError(
                f"Tensor: dtype {data.dtype} is not one of int8, uint8, float32, int32; convert the array"
                " first"
            )
        tensor = cls(device, data.shape, name, layout, qparams)
        tensor.write(data)
        return tensor

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def packed(self) -> Layout | None:
        """The packed layout, or None for a row-major array."""
        return None if self.layout == CONTIGUOUS else layout(self.layout)

    @property
    def extent(self) -> tuple[int, int, int, int]:
        """The shape as the layout's (n, c, h, w): a matrix (..., K) is (1, 1, M, K), in blocks of channels
        (M, K, 1, 1)."""
        return extent_of(self.shape, self.layout)

    @property
    def nbytes(self) -> int:
        """Device bytes of the elements, with the layout's padding."""
        packed = self.packed
        return 4 * (self.size if packed is None else packed.words(self.extent))

    def write(self, array: npt.ArrayLike) -> None:
        """Replaces the content by an array of the same shape and dtype. What was asked for before still sees
        the old content."""
        data = np.asarray(array)
        if data.shape != self.shape or data.dtype.newbyteorder("=").name != self.dtype:
            raise ArgumentError(
                f"Tensor.write: the array is {data.dtype} {data.shape}, the tensor {self.dtype} {self.shape};"
                " they must be equal"
            )
        packed = self.packed
        if packed is None:
            self.device.upload(self.buffer, np.ascontiguousarray(data, _NUMBERS[self.dtype]))
            return
        signed = (
            data.astype(np.int8, copy=False)
            if self.dtype == "int8"
            else (data ^ np.uint8(0x80)).view(np.int8)
        )
        self.device.upload(self.buffer, packed.pack(signed.reshape(self.extent)))

    def numpy(self) -> npt.NDArray[Any]:
        """The content as a new NumPy array, after everything that it depends on has run."""
        raw = self.device.download(self.buffer, self.nbytes)
        packed = self.packed
        if packed is None:
            return raw.view(_NUMBERS[self.dtype]).reshape(self.shape)
        out = packed.unpack(raw.view(np.int32), self.extent).reshape(self.shape)
        return out if self.dtype == "int8" else out.view(np.uint8) ^ np.uint8(0x80)

    def __repr__(self) -> str:
        return f"<vkq.Tensor {self.dtype} {self.shape} {self.layout} on {self.device.name}>"


def default_layout(dtype: str, rank: int) -> str:
    """The layout of a tensor whose layout is not given: images for four dims, matrices otherwise; numbers are
    row-major."""
    if dtype not in _BYTES:
        return CONTIGUOUS
    return IMAGE if rank == 4 else MATRIX


def extent_of(shape: Sequence[int], layout_name: str) -> tuple[int, int, int, int]:
    """A logical shape as (n, c, h, w): 4-D as it is, others, and 4-D in the matrix layout, with all but the
    last axis folded into rows. Rows are h, their elements w; in blocks of channels n and c."""
    if len(shape) == 4 and layout_name != MATRIX:
        n, c, h, w = shape
        return (n, c, h, w)
    rows, k = math.prod(shape[:-1]), shape[-1] if shape else 1
    return (rows, k, 1, 1) if layout_name == BLOCKED else (1, 1, rows, k)


def check_layout(dtype: str, layout_name: str, shape: Sequence[int]) -> None:
    """Raises where dtype, layout and rank do not go together."""
    if min(shape, default=0) < 0:
        raise ArgumentError(f"Tensor: shape {tuple(shape)} has a negative dim; each must be at least 0")
    if dtype not in _BYTES and dtype not in _NUMBERS:
        raise DTypeError(f"Tensor: dtype {dtype} is not one of int8, uint8, float32, int32")
    if (dtype in _BYTES) == (layout_name == CONTIGUOUS):
        raise ArgumentError(
            f"Tensor: dtype {dtype} cannot have layout {layout_name}; 8-bit data is packed, other data"
            " contiguous"
        )
    if dtype in _BYTES:
        dims = layout(layout_name).dims
        if dims != ("n", "c", "h", "w"):
            raise ArgumentError(
                f"Tensor: {layout_name} has dims {dims}; activations need a layout of n, c, h, w"
            )
        if layout_name == IMAGE and len(shape) != 4:
            raise ArgumentError(f"Tensor: {IMAGE} holds (N, C, H, W), the shape is {tuple(shape)}")
