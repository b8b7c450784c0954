"""The form in which a device stores 8-bit values, and read-only arrays. All 8-bit values are stored as int8:
128 is subtracted from uint8 values and their zero points."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.numerics.qparams import QParams

Int8 = npt.NDArray[np.int8]


def owned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only array with these values: *values* itself if nothing can write to its memory (it owns
    the memory and is read-only, or the memory is that of bytes or of a read-only memory map). Else return a
    copy, because the caller may write to its array later."""
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
    """Return 8-bit values as int8: uint8 values minus 128, int8 values unchanged. With the zero point from
    `signed_zero_point`, the returned values stand for the same real numbers."""
    if values.dtype == np.uint8:
        values = (values ^ np.uint8(0x80)).view(np.int8)
    return np.asarray(values, np.int8)


def signed_zero_point(q: QParams | None) -> int:
    """Return the zero point that belongs to the values of `signed`, or 0 if q is None: then each row's zero
    point is computed at run time."""
    if q is None:
        return 0
    return q.zero_point - (128 if q.dtype == "uint8" else 0)


def shift(dtype: str) -> int:
    """Return the number that is subtracted from values of a dtype to store them as int8: 128 for uint8, else
    0."""
    return 128 if dtype == "uint8" else 0
