"""Tensors in ONNX files: types, dims, and elements. Elements are in the model file or in external data."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from ..files import MAX_DIGITS, mapped
from ..graph.graph import Array, Spec
from ..numerics.grouped import unpacked
from .protobuf import BFLOAT16, DATA_TYPES, NIBBLES, messages, numbers_of, package

OLDEST, NEWEST = 7, 27  # the oldest and the newest opset of ai.onnx that vkq reads
BROKEN = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


LEAST_MAPPED = 1 << 16  # external data of at least this many bytes is memory-mapped, not copied
Shape = tuple[int | str, ...]


@dataclasses.dataclass(frozen=True)
class Argument:
    """An input or output of a model. A string in ``shape`` is the name of a free dimension. hint: a text that
    is appended to errors about the type or shape of the input. ranked: False if the model states no shape;
    ``shape`` is then empty, and the input may have any number of axes. stored: the type to which the host
    converts the input, if it is not *dtype* (`casts`)."""

    name: str
    dtype: str
    shape: Shape
    hint: str = ""
    ranked: bool = True
    stored: str = ""


def dtype_of(number: int, what: str) -> str:
    name = DATA_TYPES.get(number)
    if name is None:
        known = ", ".join(DATA_TYPES.values())
        raise ModelError(f"{what!r} is of {_foreign_type(number)}; only {known} can be read")
    return name


def _foreign_type(number: int) -> str:
    try:
        return str(np.dtype(package().helper.tensor_dtype_to_np_dtype(number)).name)
    except (KeyError, ValueError, TypeError):
        return f"type {number}"


def array_of(tensor: Any, folder: Path | None) -> Array:
    """Return the elements of a TensorProto. 4-bit elements are widened to 8 bits, bfloat16 to float32."""
    what, shape = f"the constant {tensor.name!r}", tuple(tensor.dims)
    _, wider = NIBBLES.get(tensor.data_type, ("", ""))
    if tensor.data_type == BFLOAT16:
        wider = "uint16"
    dtype = np.dtype(wider or dtype_of(tensor.data_type, tensor.name))
    if min(shape, default=0) < 0:
        raise ModelError(f"{what} has the dims {list(shape)}; each must be 0 or more")
    Spec(dtype.name, shape).check(what)
    if tensor.data_type == BFLOAT16:  # the upper half of a float32
        return (_stored(tensor, dtype, shape, folder, what).astype(np.uint32) << 16).view(np.float32)
    if wider:
        count = math.prod(shape)
        pairs = _stored(tensor, np.dtype("uint8"), (-(-count // 2),), folder, what)
        codes = unpacked(pairs, 4)[:count].reshape(shape)
        return codes if wider == "uint8" else (codes ^ 8).view(np.int8) - np.int8(8)
    return _stored(tensor, dtype, shape, folder, what)


def _stored(
    tensor: Any, dtype: np.dtype[Any], shape: tuple[int, ...], folder: Path | None, what: str
) -> Array:
    if tensor.data_location == messages().TensorProto.EXTERNAL:
        return _external(tensor, dtype, shape, folder, what)
    try:
        return numbers_of(tensor, dtype, shape)
    except BROKEN as error:
        raise ModelError(
            f"{what} has the dims {list(tensor.dims)}, which its data does not fit: {error}"
        ) from error


def _external(
    tensor: Any, dtype: np.dtype[Any], shape: tuple[int, ...], folder: Path | None, what: str
) -> Array:
    """Read external data from a file in the model's folder. Raises ModelError for absolute paths, for "..",
    and for links that lead outside the folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(f"{what} has external data; give the model as a path, so that its folder is known")
    size = math.prod(shape) * dtype.itemsize
    offset, length = (_byte_count(entries.get(*of), what) for of in (("offset", "0"), ("length", str(size))))
    try:
        path = _inside(folder, location, what)
        if length != size or offset + size > path.stat().st_size:
            raise ModelError(
                f"{what} needs {size} bytes; its data is {length} bytes from byte {offset} on in"
                f" {location!r}, which has {path.stat().st_size} bytes"
            )
        data = _numbers(path, offset, size, dtype.newbyteorder("<"))
    except (OSError, RuntimeError) as error:  # a cycle of links, or a name that is too long
        raise ModelError(f"{what} has external data that cannot be read: {str(error)[:200]}") from error
    return np.asarray(data.astype(dtype.newbyteorder("="), copy=False).reshape(shape))


def _numbers(path: Path, offset: int, size: int, dtype: np.dtype[Any]) -> Array:
    """Return *size* bytes of a file as a read-only array. The array is a view of the file's memory map, or a
    copy if the bytes are few or not aligned."""
    if size >= LEAST_MAPPED and offset % dtype.itemsize == 0:
        return np.frombuffer(mapped(path), dtype, size // dtype.itemsize, offset)
    with path.open("rb") as file:
        file.seek(offset)
        return np.frombuffer(file.read(size), dtype)


def _inside(folder: Path, location: str, what: str) -> Path:
    """Return the path of external data. Raises ModelError if *location* is no regular file in *folder*."""
    base = folder.resolve()
    path = (base / location).resolve()
    if not location or os.path.isabs(location) or base not in path.parents:
        raise ModelError(
            f"{what} has external data at {location!r}, outside the model's folder; it must be inside"
        )
    if not path.is_file():
        raise ModelError(f"{what} has external data at {location!r}, which is not a regular file")
    return path


def _byte_count(text: str, what: str) -> int:
    """Convert *text*, an offset or a length in bytes in decimal digits, to a number. Raises ModelError for
    any other text."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise ModelError(f"{what} has external data at the byte {text[:40]!r}; it must be a whole number")
    return int(text)


def argument_of(value: Any) -> Argument:
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"{value.name!r} is not a tensor; sequences, maps and optionals are not supported")
    tensor = value.type.tensor_type
    dtype = dtype_of(tensor.elem_type, value.name)
    shape: list[int | str] = []
    for i, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(dim.dim_value)
        else:  # Paddle writes -1 for a single free dimension, and "?" for each of several
            shape.append(dim.dim_param.replace("?", "") or f"{value.name}.{i}")
    return Argument(value.name, dtype, tuple(shape), ranked=tensor.HasField("shape"))


def results_of(proto: Any) -> tuple[Argument, ...]:
    """Return the results of a model. onnx infers the types of results for which the model states none; the
    type of a result that onnx does not know is ""."""
    results = proto.graph.output
    if not all(value.HasField("type") for value in results):
        try:
            inferred = package().shape_inference.infer_shapes(proto).graph.output
        except Exception:  # a broken model, which the reader refuses with a better reason
            inferred = results
        types = {value.name: value.type.tensor_type.elem_type for value in inferred}
    return tuple(
        argument_of(v) if v.HasField("type") else Argument(v.name, DATA_TYPES.get(types[v.name], ""), ())
        for v in results
    )
