"""``vkq.Tensor``: an array on a device, with its dtype and layout."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import RULES, Rule, array, checked, of, optional, sequence, shown
from ..errors import ArgumentError, DTypeError
from ..layout.extent import BYTES, NUMBERS, Extent, Spec
from ..layout.pack import Layout
from ..numerics.qparams import QParams
from ..turns import begun
from .buffer import Buffer
from .context import OfOneProcess
from .device import Device
from .opened import opened
from .transfer import CPU, as_array, check_dtype, get, put, snapshot


def _no_operators(x: Tensor, shape: Sequence[int]) -> Tensor:
    raise NotImplementedError


# The implementation of `Tensor.reshape`. vkq.ops.repack sets it: this module must not import operators.
reshaped: Callable[[Tensor, Sequence[int]], Tensor] = _no_operators


class Tensor(OfOneProcess):
    """An array in device memory.

    - ``shape``: the logical shape.
    - ``dtype``: "int8", "uint8", "float32", "int32" or "float16".
    - ``layout``: "contiguous" (row-major), or for 8-bit data the name of a packed layout: kPackedInt8_4W4C
      for images (N, C, H, W), kPackedInt8_4H4W for matrices (..., K), kPackedInt8_16C for images and matrices
      (an array of four axes is an image).
    - ``qparams``: the parameters of 8-bit values, if known. A layer refuses an input with other parameters
      than its own.

    uint8 data are stored as int8: 128 is subtracted from the values and from the zero point, so they stand
    for the same real numbers.

    ``Tensor.from_numpy`` and layers make Tensors. ``numpy()`` copies the content to the host.
    """

    __slots__ = ("buffer", "device", "spec")

    @checked
    def __init__(
        self,
        device: Device | int | str,
        shape: Sequence[int],
        dtype: str,
        layout: str | None = None,
        qparams: QParams | None = None,
        buffer: Buffer | None = None,
    ):
        self.device = opened(device)
        self.spec = Spec(shape, dtype, layout, qparams)
        self.buffer = buffer or self.device.allocate(self.spec.nbytes)

    @classmethod
    def of(cls, device: Device, spec: Spec, buffer: Buffer | None = None) -> Tensor:
        """Return a tensor with this `Spec`, in *buffer* or in new memory."""
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
        """ "int8", "uint8", "float32", "int32" or "float16"."""
        return self.spec.dtype

    @property
    def layout(self) -> str:
        """The name of a packed layout, or "contiguous"."""
        return self.spec.layout

    @property
    def qparams(self) -> QParams | None:
        """The parameters of 8-bit values, if known."""
        return self.spec.qparams

    @classmethod
    def from_numpy(
        cls,
        array: npt.ArrayLike,
        device: Device | int | str | None = None,
        layout: str | None = None,
        qparams: QParams | None = None,
    ) -> Tensor:
        """Copy an array (any strides and byte order; never modified) to *device*, or to the default device.

        Raises DTypeError for dtypes other than int8, uint8, float32, int32 and float16 (float64 is not
        converted silently).
        """
        data = as_array(array, "Tensor.from_numpy")
        name = check_dtype(data, (*BYTES, *NUMBERS))
        tensor = cls(_device(device), data.shape, name, layout, qparams)
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
        """The shape as (n, c, h, w) of the layout: (1, 1, M, K) for a matrix (..., K), or (M, K, 1, 1) in
        kPackedInt8_16C."""
        return self.spec.extent

    @property
    def nbytes(self) -> int:
        """The bytes of the elements on the device, including the layout's padding."""
        return self.spec.nbytes

    def write(self, array: npt.ArrayLike) -> None:
        """Replace the content with an array of this tensor's shape and dtype. Earlier operations still read
        the old content."""
        data = as_array(array, "Tensor.write")
        if data.shape != self.shape or data.dtype.newbyteorder("=").name != self.dtype:
            raise ArgumentError(
                f"Tensor.write: the array is {data.dtype} {data.shape}, the tensor {self.dtype} {self.shape};"
                " dtype and shape must be equal"
            )
        put(self.device, self.buffer, self.spec, data)

    def numpy(self, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the content as a new NumPy array, or in *out* (an array of this tensor's shape and dtype,
        any strides), after all operations on which the content depends.

        Raises DTypeError if *out* is not an array, ArgumentError if it has another shape or dtype or is
        read-only.
        """
        dtype = np.dtype(NUMBERS.get(self.dtype, self.dtype))
        if out is None:
            out = np.empty(self.shape, dtype)
        elif not isinstance(out, np.ndarray):
            raise DTypeError(f"Tensor.numpy: out is a {type(out).__name__}; it must be an array or None")
        elif out.shape != self.shape or out.dtype.newbyteorder("=") != dtype or not out.flags.writeable:
            frozen = "" if out.flags.writeable else " (read-only)"
            raise ArgumentError(
                f"Tensor.numpy: out is {out.dtype} {out.shape}{frozen}, the tensor {self.dtype} {self.shape};"
                " they must be equal, and out writable"
            )
        direct = out.dtype == dtype and out.flags.c_contiguous
        into = out if direct else np.empty(self.shape, dtype)
        get(self.device, self.buffer, self.spec, into)
        if not direct:
            out[...] = into
        return out

    def numpy_async(self) -> Future[npt.NDArray[Any]]:
        """Return a future of `numpy` for the current content, which later writes do not change. The device
        begins immediately; ``result()`` waits."""
        now = Tensor.of(self.device, self.spec, snapshot(self.device, self.buffer, self.nbytes))
        self.device.flush()
        return begun(_readers(), now.numpy)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the content as a NumPy array, for ``np.asarray(tensor)``. Raises ValueError for
        ``copy=False``: the content must be copied."""
        if copy is False:
            raise ValueError("Tensor: its content is on a device and must be copied; leave copy=False out")
        data = self.numpy()
        return data if dtype is None else data.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """Return a DLPack capsule of the content, copied to host memory, for other libraries."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device: host memory, to which the content is copied."""
        return (CPU, 0)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Return this tensor's elements in another shape, a sequence or several integers (`vkq.reshape`)."""
        dims = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return reshaped(self, dims)  # type: ignore[arg-type]

    def flatten(self) -> Tensor:
        """Return (N, ...) as (N, product of the other sizes), as torch.flatten(x, 1) does (`vkq.flatten`)."""
        return reshaped(self, (*self.shape[:1], math.prod(self.shape[1:])))

    def __repr__(self) -> str:
        return f"<vkq.Tensor {self.dtype} {self.shape} {self.layout} on {self.device.short_name}>"


def _device(given: Device | int | str | None) -> Device:
    rule = RULES["Device | int | str | None"]
    if not rule.check(given):
        raise DTypeError(f"Tensor.from_numpy: device is {shown(given)}; it must be {rule.must}.")
    return opened(given)


@functools.cache
def _readers() -> ThreadPoolExecutor:
    """Return the threads that wait for the device on behalf of callers."""
    return ThreadPoolExecutor(2, "vkq-read")


def _operand(value: Any) -> bool:
    return isinstance(value, Tensor) or array(value)


_operands = "a Tensor or an array of numbers"
RULES |= {
    "Tensor": Rule(of(Tensor), "a Tensor"),
    "Tensor | None": Rule(optional(of(Tensor)), "a Tensor or None"),
    "Operand": Rule(_operand, _operands),
    "npt.ArrayLike | Tensor": Rule(_operand, _operands),
    "Sequence[Operand]": Rule(sequence(_operand), "a sequence of Tensors or arrays of numbers"),
}
