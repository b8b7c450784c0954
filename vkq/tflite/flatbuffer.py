"""Reads flatbuffers. Every offset is checked before it is followed.

- A table begins with the distance to its vtable.
- A vtable has its own size, the table's size, and the offset of each field in the table. An offset of 0 means
  that the field is omitted and has its default.
- A field that is not a scalar is a distance forward to its content.
- A vector begins with its length.

In a malicious file, distances and lengths may have any value. So every read is checked to be inside the file,
and no vector may be longer than the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from .schema import OPTIONS, SCALARS, TABLES, Fields

MOST = 1 << 20  # maximum number of tables in a vector of tables
WORD = 4  # bytes of a distance or a length in the file


class FlatTable:
    """A table in the file. Its methods read a field by name: as a number, a text, an array, a table, or a
    list of tables."""

    def __init__(self, data: memoryview, at: int, kind: str):
        self.data, self.kind = data, kind
        self.fields: Fields = OPTIONS[kind][1] if kind in OPTIONS else TABLES[kind]
        vtable = at - int.from_bytes(self._bytes(at, WORD, "the table"), "little", signed=True)
        head = self._bytes(vtable, WORD, "the vtable")
        size, inside = (int.from_bytes(head[i : i + 2], "little") for i in (0, 2))
        if size < WORD or size % 2 or inside < WORD:
            raise ModelError(
                f"{kind}: its vtable at byte {vtable} has {size} bytes and its table {inside}; both must have"
                f" at least {WORD}, and the vtable an even number"
            )
        self._bytes(at, inside, "the table")
        self.at, self.size = at, inside
        self.offsets = np.frombuffer(self._bytes(vtable, size, "the vtable"), "<u2")[2:]

    def _bytes(self, at: int, count: int, what: str) -> memoryview:
        if not 0 <= at <= len(self.data) - count:
            raise ModelError(
                f"{self.kind}: {what} would be bytes {at} to {at + count}; the file has {len(self.data)}"
            )
        return self.data[at : at + count]

    def _field(self, name: str) -> tuple[int, str] | None:
        """Return (byte offset of a field in the file, type of the field), or None if the table omits the
        field."""
        number, kind, _ = self.fields[name]
        offset = int(self.offsets[number]) if number < len(self.offsets) else 0
        if not offset:
            return None
        width = SCALARS.get(kind, WORD)
        if not WORD <= offset <= self.size - width:
            raise ModelError(
                f"{self.kind}.{name}: its offset is {offset} in a table of {self.size} bytes; it must be"
                f" {WORD} to {self.size - width}"
            )
        return self.at + offset, kind

    def number(self, name: str) -> Any:
        """Return a scalar field, or the field's default if the table omits the field."""
        place, kind = self._field(name), self.fields[name][1]
        default = self.fields[name][2]
        if place is None:
            return default if kind == "float32" else int(default)
        raw = self._bytes(place[0], SCALARS[kind], name)
        if kind == "float32":
            return float(np.frombuffer(raw, "<f4")[0])
        return int.from_bytes(raw, "little", signed=kind.startswith("int"))

    def _target(self, name: str) -> tuple[int, str] | None:
        place = self._field(name)
        if place is None:
            return None
        at, kind = place
        return at + int.from_bytes(self._bytes(at, WORD, name), "little"), kind

    def table(self, name: str, kind: str = "") -> FlatTable | None:
        """Return the table that a field refers to; None if the field is omitted. For a union, *kind* is the
        type of the table."""
        target = self._target(name)
        return None if target is None else FlatTable(self.data, target[0], kind or target[1])

    def _vector(self, name: str, width: int) -> tuple[int, int]:
        """Return (byte offset of a vector's first element, length of the vector); (0, 0) if the field is
        omitted."""
        target = self._target(name)
        if target is None:
            return 0, 0
        at = target[0]
        count = int.from_bytes(self._bytes(at, WORD, name), "little")
        self._bytes(at + WORD, count * width, f"{name} of {count} elements")
        return at + WORD, count

    def vector_offsets(self, name: str) -> tuple[int, int, int]:
        """Return (byte offset of a vector field, byte offset of the vector's first element, length of the
        vector). All three numbers are zero if the field is omitted."""
        place = self._field(name)
        return (0, 0, 0) if place is None else (place[0], *self._vector(name, 1))

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a vector of scalars as an array that shares the file's memory."""
        kind = self.fields[name][1][1:-1]
        at, count = self._vector(name, SCALARS[kind])
        dtype = np.dtype("uint8" if kind == "bool" else kind).newbyteorder("<")
        return np.frombuffer(self.data, dtype, count, at if count else 0)

    def text(self, name: str) -> str:
        """Return a text field. Bytes that are not UTF-8 become U+FFFD."""
        at, count = self._vector(name, 1)
        return bytes(self.data[at : at + count]).decode("utf-8", "replace")

    def tables(self, name: str) -> list[FlatTable]:
        """Return the tables in a vector of tables."""
        at, count = self._vector(name, WORD)
        if count > MOST:
            raise ModelError(f"{self.kind}.{name} has {count} elements; at most {MOST} are read")
        kind = self.fields[name][1][1:-1]
        distances = np.frombuffer(self.data, "<u4", count, at if count else 0).tolist()
        return [FlatTable(self.data, at + WORD * i + step, kind) for i, step in enumerate(distances)]

    def options(self) -> dict[str, Any]:
        """Return all fields of this table of options, by name."""
        return {
            name: self.array(name).tolist() if kind.startswith("[") else self.number(name)
            for name, (_, kind, _) in self.fields.items()
        }
