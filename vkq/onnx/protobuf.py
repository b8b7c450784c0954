"""The message classes of ONNX files, and the package onnx.

To run models, vkq needs only the package's message classes. Importing the whole package takes 0.05 to 0.1 s,
which is as long as reading a network takes. So the whole package is imported only when more of it is needed.
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

# From onnx.proto. The keys of DATA_TYPES and NIBBLES are numbers of TensorProto.DataType. ATTRIBUTES maps
# numbers of AttributeProto.AttributeType to the names of the fields that hold the attribute's value.
DATA_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
}  # fmt: skip
# 4-bit types: (name, dtype of the array into which vkq reads them)
BFLOAT16 = 16
NIBBLES = {21: ("uint4", "uint8"), 22: ("int4", "int8")}
ATTRIBUTES = {
    1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors", 10: "graphs",
    11: "sparse_tensor", 12: "sparse_tensors", 13: "tp", 14: "type_protos",
}  # fmt: skip
# Maps a dtype to (field, dtype of the field): the field that has the elements of a tensor without raw_data.
# All other dtypes use int32_data.
_FIELDS = {
    "float32": ("float_data", "float32"), "float64": ("double_data", "float64"),
    "int64": ("int64_data", "int64"), "uint32": ("uint64_data", "uint64"),
    "uint64": ("uint64_data", "uint64"),
}  # fmt: skip
_MISSING = "reading ONNX models needs the package onnx: pip install 'vkq[onnx]'"


def package() -> Any:
    """Return the package onnx. Raises ModelError if the package is missing."""
    try:
        import onnx
        import onnx.inliner
    except ImportError as error:
        raise ModelError(_MISSING) from error
    return onnx


@functools.cache
def messages() -> Any:
    """Return the module that defines the message classes of the package onnx.

    If the package is already imported, return the package itself. Otherwise import only the module in which
    protobuf defines the classes. Raises ModelError if the package is missing."""
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
    """Return the value of an AttributeProto: a list if its type is a list, None if it has no type. Raises
    ValueError if the AttributeProto refers to an attribute of a function."""
    if attribute.ref_attr_name:
        raise ValueError(f"the attribute {attribute.name!r} refers to an attribute of a function")
    if not attribute.type:
        return None
    field = ATTRIBUTES[attribute.type]
    value = getattr(attribute, field)
    return list(value) if field.endswith("s") and field != "s" else value


def numbers_of(tensor: Any, dtype: np.dtype[Any], shape: Sequence[int] | None = None) -> npt.NDArray[Any]:
    """Return the elements of a TensorProto whose type is in `DATA_TYPES` and whose data is in the file. They
    are copied only if necessary. Raises ValueError if the number of elements does not match *shape* (default:
    the tensor's dims)."""
    if tensor.HasField("segment"):
        raise ValueError("it is a segment of a larger tensor")
    if tensor.HasField("raw_data"):
        data = np.frombuffer(tensor.raw_data, dtype.newbyteorder("<")).astype(dtype, copy=False)
    else:
        field, stored = _FIELDS.get(dtype.name, ("int32_data", "int32"))
        data = np.array(getattr(tensor, field), stored)
        if dtype.name in ("float16", "bool"):  # int32_data holds the bits of these types as integers
            data = data.astype(f"uint{8 * dtype.itemsize}").view(dtype)
    return data.astype(dtype, copy=False).reshape(tuple(tensor.dims) if shape is None else shape)
