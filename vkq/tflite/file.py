"""Parses a .tflite file into checked tensors and operators. `lowering` translates these into a graph."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from ..graph.graph import LARGEST_BYTES
from .flatbuffer import FlatTable
from .schema import CUSTOM, OLD_CODES, OPERATORS, OPTIONS, TYPES

Array = npt.NDArray[Any]
IDENTIFIER = b"TFL3"  # the identifier: bytes 4 to 7 of every .tflite file
MOST_AXES = 8
# A buffer whose ``offset`` is above this number is stored after the flatbuffer, as in files above 2 GB.
OUTSIDE = 1
_KINDS = {number: kind for kind, (number, _) in OPTIONS.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class FileTensor:
    """A tensor of the file. ``signature`` is the shape with -1 for free dimensions. ``data`` is None if the
    tensor is computed. ``why`` is the reason why vkq cannot read the tensor, or "". ``narrow`` is True if the
    int8 elements have 4 bits in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    scales: Array
    zero_points: Array
    axis: int
    data: Array | None
    why: str = ""
    narrow: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class FileOperator:
    """An operator of the file. Inputs and outputs are tensor numbers; -1 stands for an omitted input."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]
    place: str

    def __str__(self) -> str:
        return f"{self.op} {self.place}"


@dataclasses.dataclass(frozen=True, eq=False)
class File:
    """One subgraph of a file; ``data`` has the bytes of the whole file. ``signatures`` maps the key of each
    signature of this subgraph to (inputs, outputs). Both are mappings from names to tensor numbers.
    ``others`` has the signature keys of other subgraphs."""

    tensors: tuple[FileTensor, ...]
    operators: tuple[FileOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    signatures: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]]
    name: str
    data: memoryview
    subgraph: int = 0
    others: tuple[str, ...] = ()


def is_tflite(model: Any) -> bool:
    """Return True if a model is a .tflite file: bytes or a file with its identifier, or a path with its
    suffix.

    >>> is_tflite(b"....TFL3"), is_tflite("model.onnx")
    (True, False)
    """
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model[4:8]) == IDENTIFIER
    if not isinstance(model, (str, os.PathLike)):
        return False
    path = Path(model)
    if path.is_file():
        with path.open("rb") as file:
            if file.read(8)[4:] == IDENTIFIER:
                return True
    return path.suffix == ".tflite"


def parse(model: Any, signature: str | int | None = None) -> File:
    """Parse a .tflite model, given as a path or bytes. *signature* selects a subgraph by the key of its
    signature, by its name or by its number; None selects the first subgraph.

    Raises ModelError for a file that is not a valid .tflite model, OSError for a file that cannot be read.
    """
    data = _bytes(model)
    if data[4:8] != IDENTIFIER:
        raise ModelError(f"not a .tflite model: bytes 4 to 7 are {bytes(data[4:8])!r}, not {IDENTIFIER!r}")
    root = FlatTable(data, int.from_bytes(data[:4], "little"), "Model")
    graphs, buffers = root.tables("subgraphs"), root.tables("buffers")
    known = [
        (one.text("signature_key"), one.number("subgraph_index"), one)
        for one in root.tables("signature_defs")
    ]
    at = _chosen(graphs, {key: number for key, number, _ in known}, signature)
    graph = graphs[at]
    tensors = tuple(_tensor(t, i, buffers, data) for i, t in enumerate(graph.tables("tensors")))
    codes = [_code(code) for code in root.tables("operator_codes")]
    operators = tuple(
        _operator(one, i, codes, len(tensors)) for i, one in enumerate(graph.tables("operators"))
    )
    inputs, outputs = (_numbers(graph, name, len(tensors)) for name in ("inputs", "outputs"))
    if not outputs:
        raise ModelError("the model has no results")
    signatures = {
        key: (_map(one, "inputs", len(tensors)), _map(one, "outputs", len(tensors)))
        for key, number, one in known
        if number == at
    }
    others = tuple(key for key, number, _ in known if number != at)
    return File(tensors, operators, inputs, outputs, signatures, graph.text("name"), data, at, others)


def _chosen(graphs: list[FlatTable], keys: Mapping[str, int], signature: str | int | None) -> int:
    """Return the index of the subgraph that *signature* selects. *keys* maps signature keys to indices."""
    if not graphs:
        raise ModelError("the model has no subgraphs")
    if signature is None:
        return 0
    if isinstance(signature, int):
        if not 0 <= signature < len(graphs):
            raise ModelError(f"there is no subgraph {signature}; there are {len(graphs)}")
        return signature
    names = [graph.text("name") for graph in graphs]
    found = keys.get(signature, names.index(signature) if signature in names else -1)
    if not 0 <= found < len(graphs):
        raise ModelError(
            f"there is no signature {signature!r}; there are {sorted(keys)}, and the subgraphs {names}"
        )
    return found


def _bytes(model: Any) -> memoryview:
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file (a model is a regular file)")
        model = path.read_bytes()
    if not isinstance(model, (bytes, bytearray, memoryview)):
        raise ModelError(f"the model is a {type(model).__name__}; give a path or bytes")
    return memoryview(bytes(model))  # a copy, so that later writes to the caller's bytes have no effect


def _code(code: FlatTable) -> str:
    number = max(code.number("deprecated_builtin_code"), code.number("builtin_code"))
    if code.number("deprecated_builtin_code") < OLD_CODES:
        number = code.number("deprecated_builtin_code") or number
    if number == CUSTOM:
        return code.text("custom_code") or "CUSTOM"
    return OPERATORS.get(number, f"operator {number}")


def _numbers(table: FlatTable, name: str, count: int, optional: bool = False) -> tuple[int, ...]:
    """Return the tensor numbers in the field *name*. Raises ModelError for a number outside 0 to *count* - 1;
    with *optional*, -1 is allowed, too."""
    found = tuple(table.array(name).tolist())
    least = -1 if optional else 0
    for number in found:
        if not least <= number < count:
            raise ModelError(f"{table.kind}.{name} has tensor {number}; there are {count}")
    return found


def _map(signature: FlatTable, name: str, count: int) -> dict[str, int]:
    """Return the tensor numbers of a signature's inputs or outputs, by name.

    These tensors need not be inputs or outputs of the subgraph. For example, ai-edge-quantizer may replace an
    output that operators also read, and the signature keeps the number of the old output. Such a signature is
    refused only when it is called."""
    found = {one.text("name"): one.number("tensor_index") for one in signature.tables(name)}
    for text, number in found.items():
        if number >= count:
            raise ModelError(f"the signature's {text!r} is tensor {number}; there are {count}")
    return found


def _operator(one: FlatTable, index: int, codes: list[str], count: int) -> FileOperator:
    code = one.number("opcode_index")
    if code >= len(codes):
        raise ModelError(f"operator {index} has code {code}; there are {len(codes)}")
    inputs, outputs = _numbers(one, "inputs", count, True), _numbers(one, "outputs", count)
    kind = _KINDS.get(one.number("builtin_options_type"), "")
    table = one.table("builtin_options", kind) if kind else None
    options = table.options() if table else {"custom": bytes(one.array("custom_options"))}
    return FileOperator(codes[code], inputs, outputs, options, f"#{index}")


def _tensor(one: FlatTable, index: int, buffers: list[FlatTable], data: memoryview) -> FileTensor:
    shape = tuple(one.array("shape").tolist())
    signature = tuple(one.array("shape_signature").tolist()) or shape
    number, name = one.number("type"), one.text("name") or f"tensor {index}"
    dtype = TYPES.get(number, "")
    why = "" if dtype else f"its type has number {number}; vkq reads {', '.join(TYPES.values())}"
    if len(shape) > MOST_AXES or min(shape, default=1) < 0 or len(signature) != len(shape):
        raise ModelError(
            f"tensor {name!r} has shape {shape} and signature {signature}; both must have the same"
            f" number of axes, {MOST_AXES} axes at most, and sizes of 0 or more"
        )
    if one.table("sparsity") is not None:
        why = "it is sparse; vkq reads dense tensors"
    if one.number("is_variable"):
        why = "it is a variable, which keeps its value from run to run"
    stored = None if why else _stored(one, name, dtype, shape, buffers, data)
    scales, points, axis, custom = _quantization(one.table("quantization"), name, shape)
    narrow = dtype == "int4"
    dtype = "int8" if narrow else dtype
    return FileTensor(name, dtype, shape, signature, scales, points, axis, stored, why or custom, narrow)


def _quantization(one: FlatTable | None, name: str, shape: tuple[int, ...]) -> tuple[Array, Array, int, str]:
    """Return (scales, zero points, axis of the scales, why). *why* is the reason why vkq cannot read the
    quantization, or ""."""
    none = np.zeros(0, np.float32), np.zeros(0, np.int64), 0
    if one is None:
        return (*none, "")
    if one.number("details_type"):
        return (*none, "its quantization has custom details (blocks), which vkq does not support")
    scales = one.array("scale").astype(np.float32)
    points, axis = one.array("zero_point").astype(np.int64), one.number("quantized_dimension")
    if scales.size and points.size in (0, 1):
        points = np.full(scales.size, points[0] if points.size else 0)
    sizes = {1} | ({shape[axis]} if 0 <= axis < len(shape) else set())
    if scales.size and (scales.size not in sizes or points.size != scales.size):
        raise ModelError(
            f"tensor {name!r} has {scales.size} scales and {points.size} zero points along axis {axis}; its"
            f" shape is {shape}: there must be one for all, or one for each slice"
        )
    return scales, points, axis, ""


def _stored(
    one: FlatTable, name: str, dtype: str, shape: tuple[int, ...], buffers: list[FlatTable], data: memoryview
) -> Array | None:
    """Return the elements of a constant, or None for a tensor without data, which is computed."""
    number = one.number("buffer")
    if number >= len(buffers):
        raise ModelError(f"tensor {name!r} is in buffer {number}; there are {len(buffers)}")
    buffer = buffers[number]
    raw: Array = buffer.array("data")
    offset, size = buffer.number("offset"), buffer.number("size")
    if offset > OUTSIDE:
        if offset + size > len(data):
            raise ModelError(f"buffer {number} is bytes {offset} to {offset + size}; there are {len(data)}")
        raw = np.frombuffer(data, np.uint8, size, offset)
    if not raw.size:
        return None
    count = math.prod(shape)
    width = 0.5 if dtype == "int4" else np.dtype(dtype).itemsize
    wanted = math.ceil(count * width)
    if raw.size != wanted or wanted > LARGEST_BYTES:
        raise ModelError(
            f"tensor {name!r}: buffer {number} has {raw.size} bytes; {dtype}{list(shape)} takes {wanted}"
        )
    if dtype == "int4":  # the first element is in the low four bits of a byte
        nibbles = np.stack([raw & 15, raw >> 4], -1).reshape(-1)[:count].astype(np.int8)
        return np.asarray((nibbles ^ 8) - 8, np.int8).reshape(shape)
    numbers = raw.view(np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=False)
    return np.asarray(numbers.reshape(shape))
