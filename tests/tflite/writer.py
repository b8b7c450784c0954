"""A writer of small .tflite files for tests. Tables and fields have the names of `vkq.tflite.schema`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkq.tflite.schema import OPERATORS, OPTIONS, TABLES, TYPES

FORMATS = {
    "bool": "B", "int8": "b", "uint8": "B", "int32": "i", "uint32": "I", "float32": "f", "int64": "q",
    "uint64": "Q",
}  # fmt: skip
NUMBERS = {name: number for number, name in TYPES.items()}
CODES = {name: number for number, name in OPERATORS.items()}


class Writer:
    """A model of one subgraph under construction."""

    def __init__(self) -> None:
        self.tensors: list[dict[str, Any]] = []
        self.buffers: list[dict[str, Any]] = [{}]
        self.codes: list[dict[str, Any]] = []
        self.operators: list[dict[str, Any]] = []

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str = "int8",
        scale: Any = None,
        zero: Any = 0,
        axis: int = 0,
        data: Any = None,
        name: str = "",
        **more: Any,
    ) -> int:
        """Add a tensor, or a constant if *data* is given; return its number."""
        number = 0
        if data is not None:
            raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
            self.buffers.append({"data": raw})
            number = len(self.buffers) - 1
        made = {
            "shape": list(shape), "type": NUMBERS[dtype], "buffer": number,
            "name": name or f"t{len(self.tensors)}", **more,
        }  # fmt: skip
        if scale is not None:
            scales = np.atleast_1d(np.asarray(scale, np.float32))
            zeros = np.broadcast_to(np.asarray(zero, np.int64), scales.shape)
            made["quantization"] = {
                "scale": scales.tolist(), "zero_point": zeros.tolist(), "quantized_dimension": axis,
            }  # fmt: skip
        self.tensors.append(made)
        return len(self.tensors) - 1

    def constant(self, data: Any, scale: Any = None, zero: Any = 0, axis: int = 0) -> int:
        """Add a constant and return its number."""
        array = np.asarray(data)
        return self.tensor(array.shape, array.dtype.name, scale, zero, axis, array)

    def operator(
        self, op: str, inputs: Sequence[int], outputs: Sequence[int], kind: str = "", version: int = 1,
        **options: Any,
    ) -> None:  # fmt: skip
        """Add an operator. *kind*: the name of the operator's options table, or "" if it has none."""
        number = CODES.get(op, 32)
        code = {"deprecated_builtin_code": min(number, 127), "builtin_code": number, "version": version}
        if op not in CODES:
            code["custom_code"] = op
        if code not in self.codes:
            self.codes.append(code)
        made = {"opcode_index": self.codes.index(code), "inputs": list(inputs), "outputs": list(outputs)}
        if kind:
            made |= {"builtin_options_type": OPTIONS[kind][0], "builtin_options": (kind, options)}
        self.operators.append(made)

    def file(self, inputs: Sequence[int], outputs: Sequence[int], **more: Any) -> bytes:
        """Return the bytes of the file."""
        graph = {
            "tensors": self.tensors, "inputs": list(inputs), "outputs": list(outputs),
            "operators": self.operators, "name": "main",
        }  # fmt: skip
        model = {
            "version": 3, "operator_codes": self.codes, "subgraphs": [graph], "description": "vkq",
            "buffers": self.buffers, **more,
        }  # fmt: skip
        return serialized(model)


def serialized(model: dict[str, Any]) -> bytes:
    """Return a Model as bytes. A vtable precedes its table; the objects to which a table refers
    follow it."""
    out = bytearray(8)
    out[4:8] = b"TFL3"
    struct.pack_into("<I", out, 0, _table(out, "Model", model))
    return bytes(out)


def _align(out: bytearray, size: int, ahead: int = 0) -> None:
    out.extend(bytes(-(len(out) + ahead) % size))


def _table(out: bytearray, kind: str, values: dict[str, Any]) -> int:
    fields = OPTIONS[kind][1] if kind in OPTIONS else TABLES[kind]
    slots = 1 + max((fields[name][0] for name in values), default=-1)
    size, offsets = 4, {}
    for name in sorted(values, key=lambda n: fields[n][0]):
        width = struct.calcsize(FORMATS.get(fields[name][1], "I"))
        size += -size % width
        offsets[name], size = size, size + width
    _align(out, 8, 4 + 2 * slots)
    vtable = len(out)
    out.extend(struct.pack("<HH", 4 + 2 * slots, size) + bytes(2 * slots))
    at = len(out)
    out.extend(bytes(size))
    struct.pack_into("<i", out, at, at - vtable)
    for name, offset in offsets.items():
        number, kind_of, _ = fields[name]
        struct.pack_into("<H", out, vtable + 4 + 2 * number, offset)
        if kind_of in FORMATS:
            struct.pack_into("<" + FORMATS[kind_of], out, at + offset, values[name])
        else:
            target = _reference(out, kind_of, values[name])
            struct.pack_into("<I", out, at + offset, target - at - offset)
    return at


def _reference(out: bytearray, kind: str, value: Any) -> int:
    if kind == "string":
        return _vector(out, value.encode() + b"\0", len(value.encode()), 4)
    if kind == "Options":
        return _table(out, *value)
    if not kind.startswith("["):
        return _table(out, kind, value)
    element = kind[1:-1]
    if isinstance(value, bytes):
        return _vector(out, value, len(value), 16)
    if element in FORMATS:
        packed = struct.pack(f"<{len(value)}{FORMATS[element]}", *value)
        return _vector(out, packed, len(value), struct.calcsize(FORMATS[element]))
    at = _vector(out, bytes(4 * len(value)), len(value), 4)
    for i, one in enumerate(value):
        target = _table(out, element, one)
        struct.pack_into("<I", out, at + 4 + 4 * i, target - at - 4 - 4 * i)
    return at


def _vector(out: bytearray, data: bytes, count: int, alignment: int) -> int:
    _align(out, max(alignment, 4), 4)
    at = len(out)
    out.extend(struct.pack("<I", count) + data)
    return at
