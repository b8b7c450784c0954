"""8-bit values as a device stores them, and read-only arrays. All 8-bit values are stored as int8: uint8
values and their zero points are stored minus 128."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.numerics.qparams import QParams

Int8 = npt.NDArray[np.int8]


def owned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only array with these values. The result is *values* itself if nothing can write to its
    memory: it is read-only and owns its memory, or the memory is that of bytes or of a read-only memory
    map. Else the result is a copy, because the caller may write to its array later."""
    owner: Any = values
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    kept = owner is None or isinstance(owner, bytes)
    if not kept and not (isinstance(owner, mmap.mmap) and memoryview(owner).readonly):
        values = values.copy()
        values.flags.writeable = False
    return values


def signed(values: npt.NDArray[Any]) -> Int8:
    """Return 8-bit values as int8: uint8 values minus 128, int8 values unchanged. `signed_zero_point`
    returns their zero point."""
    if values.dtype == np.uint8:
        values = (values ^ np.uint8(0x80)).view(np.int8)
    return np.asarray(values, np.int8)


def signed_zero_point(q: QParams | None) -> int:
    """Return the zero point for the values of `signed`; 0 if q is None (each row's zero point is computed
    at run time)."""
    if q is None:
        return 0
    return q.zero_point - (128 if q.dtype == "uint8" else 0)


def shift(dtype: str) -> int:
    """Return the number that is subtracted from values of a dtype to store them as int8: 128 for uint8,
    else 0."""
    return 128 if dtype == "uint8" else 0
