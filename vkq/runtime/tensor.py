"""``vkq.Tensor``: an array on a device, with its dtype and layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..layout.extent import BYTES, NUMBERS, Extent, Spec
from ..layout.pack import Layout
from ..numerics.qparams import QParams
from .buffer import Buffer
from .device import Device


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

    __slots__ = ("buffer", "device", "spec")

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
        self.spec = Spec(shape, dtype, layout, qparams)
        self.buffer = buffer or device.allocate(self.spec.nbytes)

    @classmethod
    def of(cls, device: Device, spec: Spec, buffer: Buffer | None = None) -> Tensor:
        """The tensor that a `Spec` describes, on new memory where none is given."""
        self = object.__new__(cls)
        self.device, self.spec = device, spec
        self.buffer = device.allocate(spec.nbytes) if buffer is None else buffer
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        return self.spec.shape

    @property
    def dtype(self) -> str:
        """ "int8", "uint8", "float32" or "int32"."""
        return self.spec.dtype

    @property
    def layout(self) -> str:
        """The name of a packed layout, or "contiguous"."""
        return self.spec.layout

    @property
    def qparams(self) -> QParams | None:
        """What 8-bit values mean, where that is known."""
        return self.spec.qparams

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
        if name not in BYTES and name not in NUMBERS:
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
        return self.spec.size

    @property
    def packed(self) -> Layout | None:
        """The packed layout, or None for a row-major array."""
        return self.spec.packed

    @property
    def extent(self) -> Extent:
        """The shape as the layout's (n, c, h, w): a matrix (..., K) is (1, 1, M, K), in blocks of channels
        (M, K, 1, 1)."""
        return self.spec.extent

    @property
    def nbytes(self) -> int:
        """Device bytes of the elements, with the layout's padding."""
        return self.spec.nbytes

    def write(self, array: npt.ArrayLike) -> None:
        """Replaces the content by an array of the same shape and dtype. What was asked for before still sees
        the old content."""
        data = np.asarray(array)
        if data.shape != self.shape or data.dtype.newbyteorder("=").name != self.dtype:
            raise ArgumentError(
                f"Tensor.write: the array is {data.dtype} {data.shape}, the tensor {self.dtype} {self.shape};"
                " they must be equal"
            )
        self.device.upload(self.buffer, stored(data, self.spec))

    def numpy(self) -> npt.NDArray[Any]:
        """The content as a new NumPy array, after everything that it depends on has run."""
        raw = self.device.download(self.buffer, self.nbytes)
        packed = self.packed
        if packed is None:
            return raw.view(NUMBERS[self.dtype]).reshape(self.shape)
        out = packed.unpack(raw.view(np.int32), self.extent).reshape(self.shape)
        return out if self.dtype == "int8" else out.view(np.uint8) ^ np.uint8(0x80)

    def __repr__(self) -> str:
        return f"<vkq.Tensor {self.dtype} {self.shape} {self.layout} on {self.device.name}>"


def stored(array: npt.ArrayLike, spec: Spec | None = None) -> npt.NDArray[Any]:
    """An array as device memory holds it: *spec* says in which layout, by default that of its dtype and
    rank."""
    data = np.asarray(array)
    spec = spec or Spec(data.shape, data.dtype.newbyteorder("=").name)
    packed = spec.packed
    if packed is None:
        return np.ascontiguousarray(data, NUMBERS[spec.dtype])
    signed = (
        data.astype(np.int8, copy=False) if spec.dtype == "int8" else (data ^ np.uint8(0x80)).view(np.int8)
    )
    return packed.pack(signed.reshape(spec.extent))
