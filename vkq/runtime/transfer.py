"""Copies of arrays to the device and back, in the layout of a tensor.

The bytes are copied unchanged, and a shader packs or unpacks them. On a device that is the host's own
processor, the extension packs or unpacks them during the copy, which saves one copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError, DTypeError
from ..layout.extent import NUMBERS, Spec, layout_number
from ..shader.catalog import catalog
from .buffer import Buffer
from .builder import Builder, Value
from .device import Device
from .opened import opened
from .packing import UINT8, pack, packing, unpack
from .plan import Plan

CPU = 1  # kDLCPU, DLPack's device type of host memory


def as_array(x: Any, what: str) -> npt.NDArray[Any]:
    """Convert an object to a NumPy array, without a copy if possible: an array in host memory, a nested
    list, or an object with ``__array__``, the buffer protocol or DLPack.

    Raises ArgumentError for the memory of another device, DTypeError for values that are not arrays.
    """
    if isinstance(x, np.ndarray):
        return x
    try:
        # A Parameter of PyTorch must be detached before it can be read.
        if getattr(x, "requires_grad", False):
            x = x.detach()
        kind = int(x.__dlpack_device__()[0]) if hasattr(x, "__dlpack_device__") else None
        if kind in (None, CPU):
            return np.asarray(x) if kind is None or hasattr(x, "__array__") else np.from_dlpack(x)
    except MemoryError:
        raise
    except Exception as error:  # a ragged list, or an object whose methods raise
        raise DTypeError(f"{what}: NumPy cannot read it as an array: {str(error)[:200]}") from error
    raise ArgumentError(f"{what}: the array is on DLPack device type {kind}; it must be in host memory (1)")


def stored(array: npt.ArrayLike, spec: Spec | None = None) -> npt.NDArray[Any]:
    """Return an array as it is stored on the device: in the layout of *spec*, by default that of `Spec` for
    its dtype and rank."""
    data = np.asarray(array)
    spec = spec or Spec(data.shape, data.dtype.newbyteorder("=").name)
    layout = spec.packed
    if layout is None:
        return np.ascontiguousarray(data, NUMBERS[spec.dtype])
    signed = (
        data.astype(np.int8, copy=False) if spec.dtype == "int8" else (data ^ np.uint8(0x80)).view(np.int8)
    )
    return pack(layout, signed.reshape(spec.extent))


def put(device: Device, buffer: Buffer, spec: Spec, data: npt.NDArray[Any]) -> None:
    """Copy an array of the spec's shape and dtype (any strides and byte order) into *buffer*, in the spec's
    layout."""
    layout = spec.packed
    if layout is None:
        return device.upload(buffer, stored(data, spec))
    raw, flip = np.ascontiguousarray(data).reshape(-1).view(np.uint8), _flip(spec)
    if raw.size == 0:
        return device.check_usable()
    if buffer.mapped and device.shares_processor:
        device.queue.upload_packed(buffer, packing(layout, spec.extent), raw, flip)
        return None
    if too_large(device, spec):
        return device.upload(buffer, stored(data, spec))
    staged = device.allocate(raw.nbytes)
    device.upload(staged, raw)
    device.queue.add(packing_plan(device, spec, "pack").native, (staged,), (buffer,))


def get(device: Device, buffer: Buffer, spec: Spec, out: npt.NDArray[Any]) -> None:
    """Fill a C-contiguous array of the spec's shape and dtype with the content of *buffer*, after all
    operations on which the content depends."""
    layout, flat = spec.packed, out.reshape(-1).view(np.uint8)
    if layout is None or flat.size == 0:
        return device.download_into(buffer, flat)
    if buffer.mapped and device.shares_processor:
        device.check_readable()
        device.queue.download_unpacked(buffer, packing(layout, spec.extent), flat, _flip(spec))
        return None
    if too_large(device, spec):
        words = np.empty(spec.nbytes // 4, "<i4")
        device.download_into(buffer, words.view(np.uint8))
        np.bitwise_xor(
            unpack(layout, words, spec.extent).reshape(-1).view(np.uint8), np.uint8(_flip(spec)), out=flat
        )
        return None
    staged = device.allocate(flat.nbytes)
    device.check_readable()
    device.queue.add(packing_plan(device, spec, "unpack").native, (buffer,), (staged,))
    return device.download_into(staged, flat)


def snapshot(device: Device, buffer: Buffer, size: int) -> Buffer:
    """Copy the first *size* bytes of *buffer* on the device, and return the copy."""
    device.check_readable()
    copy = device.allocate(size)
    if size:
        with device.immediate(), device.operation() as recording:
            recording.copy(buffer, copy, size)
    return copy


def too_large(device: Device, spec: Spec) -> bool:
    """Return True if an array is too large for the shaders that pack and unpack. The host then does it,
    slowly."""
    return max(spec.size, spec.nbytes) > int(device.capabilities.properties["maxStorageBufferRange"])


def _flip(spec: Spec) -> int:
    return UINT8 if spec.dtype == "uint8" else 0


def packing_plan(device: Device, spec: Spec, what: Literal["pack", "unpack"]) -> Plan:
    """Return the plan that packs row-major bytes into the layout of *spec*, or unpacks them."""
    bare = Spec(spec.shape, spec.dtype, spec.layout)

    def make() -> Plan:
        b = Builder(device)
        return b.plan(copied(b, b.input(dense(bare) if what == "pack" else bare), bare, what))

    found: Plan = device.plan((what, bare), make)
    return found


def dense(spec: Spec) -> Spec:
    """Return a spec of int32 words for the row-major bytes of an 8-bit array."""
    return Spec((math.ceil(spec.size / 4),), "int32")


def copied(b: Builder, x: Value, spec: Spec, what: Literal["pack", "unpack"]) -> Value:
    """Add a step that packs row-major bytes into the layout of *spec*, or unpacks them; return its result."""
    y = b.new(spec if what == "pack" else dense(spec))
    constants = {"LAYOUT": layout_number(spec.layout), "FLIP": _flip(spec)}
    n, c, h, w = spec.extent
    count = {"words": spec.nbytes // 4} if what == "pack" else {"elements": spec.size}
    program = b.device.program(catalog().find(f"{what}_q8__word"), constants)
    b.dispatch(program, [x, y], {**count, "n": n, "c": c, "h": h, "w": w})
    return y


def check_dtype(data: npt.NDArray[Any], known: tuple[str, ...]) -> str:
    """Return the name of an array's dtype without its byte order. Raises DTypeError unless it is in
    *known*."""
    name: str = data.dtype.newbyteorder("=").name
    if name not in known:
        raise DTypeError(
            f"Tensor: dtype {data.dtype} is not one of int8, uint8, float32, int32, float16; convert the"
            " array first"
        )
    return name


@checked
def empty_pinned(
    shape: Sequence[int], dtype: npt.DTypeLike = np.float32, device: Device | int | str | None = None
) -> Any:
    """Return an array in host memory that the device can access directly.

    Uploads (``Tensor.from_numpy``, layers) and downloads (``Tensor.numpy(out=...)``) of the array run at
    the speed of the bus, without a copy on the host. The content is undefined. The array also works with
    other devices, as any array does, and after its device is closed. Its memory, and the Vulkan objects
    needed to free it, are released with the last array that uses the memory.

    >>> x = empty_pinned((2, 3), np.int8)
    >>> x.shape, x.dtype
    ((2, 3), dtype('int8'))
    """
    return opened(device).empty_pinned(shape, dtype)
