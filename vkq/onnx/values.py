"""ONNX Runtime's OrtValue: an array on the host, or a tensor on a device."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arguments import checked, shown
from ..errors import ArgumentError, DTypeError
from ..graph.graph import Array
from ..runtime.opened import opened
from ..runtime.tensor import Tensor
from .inputs import HELD, array_of, held, type_name
from .protobuf import DATA_TYPES

_by_address: weakref.WeakValueDictionary[int, OrtValue] = weakref.WeakValueDictionary()


class OrtValue:
    """An array on the host, or a `vkq.Tensor` in ``tensor``, with the interface of ONNX Runtime's OrtValue.

    The device type "cpu" means the host. Any other device type, such as "vulkan" or "cuda", means a Vulkan
    device: the default device for *device_id* 0, else the device with that index. A device stores int64 as
    int32 and bool as uint8, but ``data_type`` and ``numpy`` return the original type.
    """

    def __init__(self, value: Array | Tensor, dtype: str | None = None):
        self.array = None if isinstance(value, Tensor) else value
        self.tensor = value if isinstance(value, Tensor) else None
        self._value: Any = value
        self._dtype = np.dtype(dtype or value.dtype).name

    @classmethod
    @checked
    def ortvalue_from_numpy(cls, numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Return an OrtValue of an array. On the CPU it shares the array's memory; on a device it is a
        copy."""
        array = array_of("numpy_obj", numpy_obj)
        if device_type.lower() == "cpu":
            return cls(array)
        on_device = held("numpy_obj", array, "the array")
        return cls(Tensor.from_numpy(on_device, opened(device_id or None)), array.dtype.name)

    @classmethod
    @checked
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return an OrtValue with memory for an array of this shape and type. Its content is undefined.
        *element_type*: a NumPy type, or a number of TensorProto.DataType."""
        dtype = dtype_of(element_type)
        if device_type.lower() == "cpu":
            return cls(np.empty(shape, dtype))
        return cls(Tensor(opened(device_id or None), shape, HELD.get(dtype, dtype)), dtype)

    @classmethod
    def from_dlpack(cls, data: Any) -> OrtValue:
        """Return an OrtValue that shares the memory of *data*, an object with ``__dlpack__`` on the host."""
        return cls(np.from_dlpack(data))

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU; for a value on a device, ``__dlpack__`` gives a copy on the host

    def numpy(self) -> Array:
        """Return the array itself if the value is on the CPU, else a copy on the host."""
        array: Array = self._value if self.tensor is None else self._value.numpy()
        return array.astype(self._dtype, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype, copy=copy) if copy else np.asarray(self.numpy(), dtype)

    @checked
    def update_inplace(self, data: Any) -> None:
        """Overwrite the content with an array. Raises ArgumentError unless the array has the shape and type
        of this value."""
        array = array_of("data", data)
        if (array.shape, array.dtype.name) != (tuple(self.shape()), self._dtype):
            raise ArgumentError(
                f"update_inplace: the array is {array.dtype} {array.shape}, the value {self._dtype}"
                f" {tuple(self.shape())}; they must be equal"
            )
        if self.tensor is not None:
            self.tensor.write(held("data", array, "the array"))
        else:
            np.copyto(self._value, array)

    def device_name(self) -> str:
        """Return "cpu" or "vulkan"."""
        return "cpu" if self.tensor is None else "vulkan"

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._value.shape)

    def data_type(self) -> str:
        """Return the name of the type, such as "tensor(float)"."""
        return type_name(self._dtype)

    def element_type(self) -> int:
        """Return the type as a number of TensorProto.DataType."""
        return next(number for number, name in DATA_TYPES.items() if name == self._dtype)

    def tensor_size_in_bytes(self) -> int:
        """Return the size in bytes of an array of the original type."""
        return math.prod(self.shape()) * int(np.dtype(self._dtype).itemsize)

    def data_ptr(self) -> int:
        """Return the address of an array on the CPU. For a value on a device, return a number that only
        `IOBinding` accepts."""
        address = id(self) if self.array is None else int(self.array.ctypes.data)
        _by_address[address] = self
        return address

    def is_tensor(self) -> bool:
        """Return True: an OrtValue of vkq is always a dense tensor."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Return False: an OrtValue of vkq is always a dense tensor."""
        return False

    is_tensor_sequence = is_sparse_tensor

    def has_value(self) -> bool:
        """Return True: an OrtValue of vkq always has a value."""
        return True


def at_address(address: int, element_type: Any, shape: Sequence[int]) -> OrtValue:
    """Return the OrtValue whose `OrtValue.data_ptr` is *address*. Raises ArgumentError if no OrtValue has
    this address, or if its type or shape differs from *element_type* and *shape*."""
    value = _by_address.get(address)
    if value is None:
        raise ArgumentError(
            f"buffer_ptr is {shown(address)}, which is not the data_ptr() of an OrtValue; vkq uses no other"
            " memory by address: bind arrays by bind_cpu_input, OrtValues by bind_ortvalue_input or"
            " bind_ortvalue_output"
        )
    said, own = (dtype_of(element_type), tuple(shape)), (value._dtype, tuple(value.shape()))
    if said != own:
        raise ArgumentError(f"element_type and shape are {said}; the OrtValue at buffer_ptr needs {own}")
    return value


def dtype_of(element_type: Any) -> str:
    """Return NumPy's name of an element type. *element_type*: a NumPy type, or a number of
    TensorProto.DataType."""
    try:
        known = DATA_TYPES[element_type] if isinstance(element_type, int) else np.dtype(element_type).name
    except (KeyError, TypeError) as error:
        raise DTypeError(
            f"element_type is {shown(element_type)}; it must be a NumPy dtype or one of TensorProto's numbers"
            f" {sorted(DATA_TYPES)}"
        ) from error
    return known
