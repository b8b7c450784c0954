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
    """An array on the host ("cpu"), or a `vkq.Tensor` in ``tensor``, as ONNX Runtime's OrtValue.

    Every device type except "cpu" means Vulkan ("vulkan", or "cuda" in code written for it): the default
    device for *device_id* 0, else the device with that index. A device stores int64 as int32 and bool as
    uint8; ``data_type`` and ``numpy`` give the original type.
    """

    def __init__(self, value: Array | Tensor, dtype: str | None = None):
        self.array = None if isinstance(value, Tensor) else value
        self.tensor = value if isinstance(value, Tensor) else None
        self._value: Any = value
        self._dtype = np.dtype(dtype or value.dtype).name

    @classmethod
    @checked
    def ortvalue_from_numpy(cls, numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Return an array as an OrtValue: the array itself on the CPU, or a copy on a device."""
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
        """Return a value with memory for an array of this shape and type (NumPy's, or a number of
        TensorProto.DataType)."""
        dtype = dtype_of(element_type)
        if device_type.lower() == "cpu":
            return cls(np.empty(shape, dtype))
        return cls(Tensor(opened(device_id or None), shape, HELD.get(dtype, dtype)), dtype)

    @classmethod
    def from_dlpack(cls, data: Any) -> OrtValue:
        """Return an OrtValue that shares the memory of an object with ``__dlpack__`` on the host."""
        return cls(np.from_dlpack(data))

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU: the array is on the host, a copy if the value is on a device

    def numpy(self) -> Array:
        """Return the array itself if it is on the CPU, else a copy of the content on the device."""
        array: Array = self._value if self.tensor is None else self._value.numpy()
        return array.astype(self._dtype, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype, copy=copy) if copy else np.asarray(self.numpy(), dtype)

    @checked
    def update_inplace(self, data: Any) -> None:
        """Replace the content by an array of the same shape and type."""
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
        """Return the type, such as "tensor(float)"."""
        return type_name(self._dtype)

    def element_type(self) -> int:
        """Return the type's number in TensorProto.DataType."""
        return next(number for number, name in DATA_TYPES.items() if name == self._dtype)

    def tensor_size_in_bytes(self) -> int:
        """Return the size in bytes, in the original type."""
        return math.prod(self.shape()) * int(np.dtype(self._dtype).itemsize)

    def data_ptr(self) -> int:
        """Return the address of an array on the CPU; for a value on a device, a number that only `IOBinding`
        accepts."""
        address = id(self) if self.array is None else int(self.array.ctypes.data)
        _by_address[address] = self
        return address

    def is_tensor(self) -> bool:
        """Return True: vkq has neither sequences nor sparse tensors."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Return False: vkq has no sparse tensors."""
        return False

    is_tensor_sequence = is_sparse_tensor

    def has_value(self) -> bool:
        """Return True: vkq has no optional values."""
        return True


def at_address(address: int, element_type: Any, shape: Sequence[int]) -> OrtValue:
    """Return the value whose `OrtValue.data_ptr` is *address*; raises an error if there is no such value."""
    value = _by_address.get(address)
    if value is None:
        raise ArgumentError(
            f"buffer_ptr is {shown(address)}, which is not the data_ptr() of an OrtValue; vkq reads no"
            " other memory by"
            " address: bind_cpu_input takes arrays, bind_ortvalue_input and bind_ortvalue_output OrtValues"
        )
    said, own = (dtype_of(element_type), tuple(shape)), (value._dtype, tuple(value.shape()))
    if said != own:
        raise ArgumentError(f"element_type and shape are {said}, the OrtValue at buffer_ptr has {own}")
    return value


def dtype_of(element_type: Any) -> str:
    """Return NumPy's name of an element type, which is a NumPy type or a number of TensorProto.DataType."""
    try:
        known = DATA_TYPES[element_type] if isinstance(element_type, int) else np.dtype(element_type).name
    except (KeyError, TypeError) as error:
        raise DTypeError(
            f"element_type is {shown(element_type)}; it must be a NumPy dtype or one of TensorProto's numbers"
            f" {sorted(DATA_TYPES)}"
        ) from error
    return known
