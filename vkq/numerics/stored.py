"""The stored form of 8-bit values, which is int8 (128 is subtracted from uint8 values and zero points), and
read-only arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.numerics.qparams import QParams

Int8 = npt.NDArray[np.int8]


def owned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array, or a copy if the array or its base is writable. The result is read-only: writes of
    the caller do not change it before it is packed."""
    owner: Any = values
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    if owner is not None and not isinstance(owner, bytes):
        values = values.copy()
        values.flags.writeable = False
    return values


def signed(values: npt.NDArray[Any]) -> Int8:
    """Return int8 values unchanged, and uint8 values minus 128. With the zero point shifted by the same
    amount, they stand for the same real numbers."""
    if values.dtype == np.uint8:
        values = (values ^ np.uint8(0x80)).view(np.int8)
    return np.asarray(values, np.int8)


def signed_zero_point(q: QParams | None) -> int:
    """Return the zero point of 8-bit data after `signed`; 0 if q is None (each row's zero point is computed
    at run time)."""
    if q is None:
        return 0
    return q.zero_point - (128 if q.dtype == "uint8" else 0)


def shift(dtype: str) -> int:
    """Return the shift of a dtype, 0 or 128: stored int8 = value - shift."""
    return 128 if dtype == "uint8" else 0
