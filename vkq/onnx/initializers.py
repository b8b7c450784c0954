"""Replaces initializers of a model by values that a session is given (`SessionOptions.add_initializer`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..arguments import shown
from ..errors import ArgumentError, DTypeError
from ..graph.graph import Array
from .protobuf import package


def replaced(model: Any, given: Mapping[str, Any]) -> Any:
    """Return the model with the values *given* as initializers; return *model* itself if *given* is empty.
    The external data of replaced initializers is not read."""
    if not given:
        return model
    onnx, folder = package(), ""
    if isinstance(model, (bytes, bytearray)):
        proto = onnx.load_from_string(bytes(model))
    elif isinstance(model, (str, os.PathLike)):
        proto, folder = onnx.load(os.fspath(model), load_external_data=False), str(Path(model).parent)
    else:
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
    own = {tensor.name: tensor for tensor in proto.graph.initializer}
    if unknown := sorted(set(given) - set(own)):
        raise ArgumentError(f"the model has no initializers {unknown}; it has {sorted(own)}")
    for name, value in given.items():
        own[name].CopyFrom(_tensor(onnx, own[name], _array(name, value)))
    onnx.load_external_data_for_model(proto, folder)
    return proto


def _array(name: str, value: Any) -> Array:
    if not callable(getattr(value, "numpy", None)):
        raise DTypeError(f"initializer {name!r} is {shown(value)}; it must be an OrtValue")
    array: Array = value.numpy()
    return array


def _tensor(onnx: Any, own: Any, array: Array) -> Any:
    """Return an array as a TensorProto. Raises ArgumentError unless the array has the type and shape of
    *own*, the initializer in the model."""
    made = onnx.numpy_helper.from_array(array, own.name)
    if (list(made.dims), made.data_type) != (list(own.dims), own.data_type):
        kind = onnx.helper.tensor_dtype_to_np_dtype(own.data_type)
        raise ArgumentError(
            f"initializer {own.name!r} is given as {array.dtype} {array.shape}; it must be {kind}"
            f" {tuple(own.dims)}"
        )
    return made
