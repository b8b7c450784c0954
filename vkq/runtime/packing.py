"""Pack arrays into layouts and unpack them, on the host with the extension, at memory speed. The results
equal those of `vkq.layout.pack`."""

from __future__ import annotations

import atexit
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.extension import native_module
from ..layout.pack import Layout

UINT8 = 0x80  # uint8 value ^ UINT8 is the stored int8 value: value - 128


@functools.lru_cache(maxsize=256)
def packing(layout: Layout, shape: tuple[int, ...]) -> Any:
    """Return the extension's description of a layout for arrays of *shape* (``vkq._kompute.Packing``)."""
    axes = [np.zeros(size, np.uint32) for size in shape]
    stride = 1
    for part in reversed(layout.order):
        position = np.arange(shape[part.dim], dtype=np.uint32)
        digit = position if part.modulus is None else position % part.modulus
        axes[part.dim] += digit // part.divisor * np.uint32(stride)
        stride *= part.extent(shape)
    lane = layout.lane.dim
    axes[lane] = np.ascontiguousarray(axes[lane][::4])
    # Move axes of size 1 (except the lane's) to the front. The last axis is then longer, along which the
    # extension's inner loop runs.
    long = [dim for dim in range(len(shape)) if shape[dim] != 1 or dim == lane]
    missing = 4 - len(long)
    tables = tuple([np.zeros(1, np.uint32)] * missing + [axes[dim] for dim in long])
    extent = (1,) * missing + tuple(shape[dim] for dim in long)
    return native_module().Packing(extent, tables, long.index(lane) + missing, stride)


# Native objects that exist when the interpreter exits would be reported as leaks.
atexit.register(packing.cache_clear)


def pack(layout: Layout, array: npt.NDArray[np.int8], fill: int = 0) -> npt.NDArray[np.int32]:
    """Pack an int8 array into the int32 words of a layout, with *fill* in padding lanes, as
    `vkq.layout.pack.Layout.pack` does."""
    data = np.ascontiguousarray(array, np.int8)
    words = np.empty(layout.words(data.shape), "<i4")
    if data.size:
        packing(layout, data.shape).pack(
            words.view(np.uint8), data.reshape(-1).view(np.uint8), 0, fill & 0xFF
        )
    else:
        words[:] = np.int32(np.frombuffer(bytes([fill & 0xFF] * 4), "<i4")[0])
    return words


def unpack(layout: Layout, words: npt.NDArray[np.int32], shape: tuple[int, ...]) -> npt.NDArray[np.int8]:
    """Return the int8 array of this shape from the int32 words of a layout, as
    `vkq.layout.pack.Layout.unpack` does."""
    array = np.empty(shape, np.int8)
    if array.size:
        data = np.ascontiguousarray(words, "<i4").view(np.uint8)
        packing(layout, tuple(shape)).unpack(array.reshape(-1).view(np.uint8), data, 0)
    return array
