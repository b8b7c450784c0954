"""Reads the options of a custom operator, which a file stores as a map in the format FlexBuffers.

- The last byte of the data is the width of the root value. The byte before it is the type of the root.
- A map is a vector of values in the order of their keys. Directly before the values is their number, before
  that the width of the keys' offsets, and before that the distance back to the vector of the keys. After the
  values is a byte for each value, with its type.

Every distance is checked to stay inside the data."""

from __future__ import annotations

import numpy as np

from ..errors import ModelError

MOST_KEYS = 256
WIDTHS = (1, 2, 4, 8)
MAP, BOOL = 9, 26
SIGNED, UNSIGNED, REAL = 1, 2, 3  # types of values that are stored in the map itself
FLOATS = {4: "<f4", 8: "<f8"}


def read_map(data: bytes) -> dict[str, float]:
    """Return the numbers and flags of a map by their keys. Values of other types are left out. Raises
    ModelError for data that is not a map."""
    if len(data) < 3 or data[-1] not in WIDTHS or data[-2] >> 2 != MAP:
        raise ModelError(f"the options are {len(data)} bytes that are no FlexBuffers map")
    root = len(data) - 2 - data[-1]
    width = 1 << (data[-2] & 3)
    at = root - _whole(data, root, data[-1])
    count = _whole(data, at - width, width)
    keys = at - 3 * width - _whole(data, at - 3 * width, width)
    step = _whole(data, at - 2 * width, width)
    if count > MOST_KEYS or step not in WIDTHS or not 0 <= at <= len(data) - count * (width + 1):
        raise ModelError(f"the options have {count} keys of width {step}; at most {MOST_KEYS} are read")
    found: dict[str, float] = {}
    for i in range(count):
        name = keys + i * step
        value = _number(data, at + i * width, width, data[at + count * width + i] >> 2)
        if value is not None:
            found[_text(data, name - _whole(data, name, step))] = value
    return found


def _bytes(data: bytes, at: int, width: int) -> bytes:
    if not 0 <= at <= len(data) - width:
        raise ModelError(f"the options refer to bytes {at} to {at + width} of {len(data)}")
    return data[at : at + width]


def _whole(data: bytes, at: int, width: int, signed: bool = False) -> int:
    return int.from_bytes(_bytes(data, at, width), "little", signed=signed)


def _number(data: bytes, at: int, width: int, kind: int) -> float | None:
    if kind == REAL and width in FLOATS:
        return float(np.frombuffer(_bytes(data, at, width), FLOATS[width])[0])
    if kind in (SIGNED, UNSIGNED, BOOL):
        return _whole(data, at, width, kind == SIGNED)
    return None


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", max(at, 0))
    return _bytes(data, at, max(end - at, 0)).decode("utf-8", "replace")
