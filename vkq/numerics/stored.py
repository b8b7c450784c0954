"""How 8-bit numbers lie in memory: always as int8; uint8 is moved by 128, and its zero point with it. Whose
memory it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.numerics.qparams import QParams

Int8 = npt.NDArray[np.int8]


def owned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, or a copy where somebody can still write to it, or to what it is a view of; nobody can to
    the result. So what is packed later is what was given."""
    owner: Any = values
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    if owner is not None and not isinstance(owner, bytes):
        values = values.copy()
        values.flags.writeable = False
    return values


def signed(values: npt.NDArray[Any]) -> Int8:
    """int8 as it is, uint8 moved by 128: the same numbers with the zero point moved alike."""
    if values.dtype == np.uint8:
        values = (values ^ np.uint8(0x80)).view(np.int8)
    return np.asarray(values, np.int8)


def signed_zero_point(q: QParams | None) -> int:
    """The zero point of 8-bit data after `signed`; 0 where it is found by rows at run time (None)."""
    if q is None:
        return 0
    return q.zero_point - (128 if q.dtype == "uint8" else 0)


def shift(dtype: str) -> int:
    """What to subtract from a number of this type to get the int8 that is stored."""
    return 128 if dtype == "uint8" else 0
