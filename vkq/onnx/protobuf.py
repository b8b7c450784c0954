"""The messages of ONNX files, and the package onnx.

To run models, vkq needs only the package's message classes. The import of the rest takes as long as reading a
network (0.05 to 0.1 s), and is deferred until it is needed.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError

# Numbers from onnx.proto: TensorProto.DataType, and the types of an AttributeProto with their fields.
DATA_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
}  # fmt: skip
NIBBLES = {21: ("uint4", "uint8"), 22: ("int4", "int8")}  # TensorProto.DataType: (type, unpacked dtype)
ATTRIBUTES = {
    1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors", 10: "graphs",
    11: "sparse_tensor", 12: "sparse_tensors", 13: "tp", 14: "type_protos",
}  # fmt: skip
# By type, the field of elements that are not in raw_data; types that are not listed use int32_data.
_FIELDS = {
    "float32": ("float_data", "float32"), "float64": ("double_data", "float64"),
    "int64": ("int64_data", "int64"), "uint32": ("uint64_data", "uint64"),
    "uint64": ("uint64_data", "uint64"),
}  # fmt: skip
_MISSING = "reading ONNX models needs the package onnx: pip install 'vkq[onnx]'"


def package() -> Any:
    """Return the package onnx. Raises ModelError if it is missing."""
    try:
        import onnx
        import onnx.inliner
    except ImportError as error:
        raise ModelError(_MISSING) from error
    return onnx


@functools.cache
def messages() -> Any:
    """Return the module with the package's message classes: the package itself if it is already imported,
    else only the module in which protobuf creates these classes. Raises ModelError if the package is
    missing."""
    if hasattr(sys.modules.get("onnx"), "ModelProto"):
        return sys.modules["onnx"]
    found = importlib.util.find_spec("onnx")
    if found is None:
        raise ModelError(_MISSING)
    paths = [Path(folder) / "onnx_ml_pb2.py" for folder in found.submodule_search_locations or ()]
    path = next((path for path in paths if path.is_file()), None)
    spec = path and importlib.util.spec_from_file_location("vkq.onnx._messages", path)
    if not spec or not spec.loader:
        return package()
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def attribute_of(attribute: Any) -> Any:
    """Return the value of an AttributeProto (a list if there are several values), or None if the value is
    missing. Raises ValueError if the attribute refers to an attribute of a function."""
    if attribute.ref_attr_name:
        raise ValueError(f"the attribute {attribute.name!r} refers to an attribute of a function")
    if not attribute.type:
        return None
    field = ATTRIBUTES[attribute.type]
    value = getattr(attribute, field)
    return list(value) if field.endswith("s") and field != "s" else value


def numbers_of(tensor: Any, dtype: np.dtype[Any], shape: Sequence[int] | None = None) -> npt.NDArray[Any]:
    """Return the elements that a TensorProto (of a type in `DATA_TYPES`) has in the file, without a copy if
    possible. Raises ValueError if their number does not match *shape* (by default the tensor's dims)."""
    if tensor.HasField("segment"):
        raise ValueError("it is a segment of a larger tensor")
    if tensor.HasField("raw_data"):
        data = np.frombuffer(tensor.raw_data, dtype.newbyteorder("<")).astype(dtype, copy=False)
    else:
        field, stored = _FIELDS.get(dtype.name, ("int32_data", "int32"))
        data = np.array(getattr(tensor, field), stored)
        if dtype.name in ("float16", "bool"):  # the elements are stored as integers with the same bits
            data = data.astype(f"uint{8 * dtype.itemsize}").view(dtype)
    return data.astype(dtype, copy=False).reshape(tuple(tensor.dims) if shape is None else shape)
