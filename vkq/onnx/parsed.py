"""Parses a model as an ONNX protobuf. A file of another kind is refused with the name of its kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .protobuf import messages
from .pytorch import model_of

LARGEST_FILE = (1 << 31) - 1  # maximum bytes of a protobuf file
EXPORT = "export the network to ONNX (docs/models.md)"
# What other files begin with, from byte *place* on: (place, bytes, kind of the file, remedy)
KINDS = (
    (0, b"VKQFILE", "a file of `vkq export`", "open it with vkq.load"),
    (4, b"TFL3", "a .tflite file", "open it with vkq.tflite.InferenceSession"),
    (4, b"ORTM", "a file in ONNX Runtime's format ORT", "give the ONNX file from which it was made"),
    (0, b"version https://git-lfs", "a pointer of Git LFS", "fetch the file with `git lfs pull`"),
    (0, b"PK\x03\x04", "a ZIP archive, as PyTorch, Keras and NumPy write", EXPORT),
    (0, b"\x80\x02", "a pickle, as PyTorch wrote before 1.6", EXPORT),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes", EXPORT),
    (0, b"GGUF", "a GGUF file of llama.cpp", EXPORT),
    (5, b'\0\0\0{"', "a safetensors file, which has only weights", EXPORT),
    (0, b"\x1f\x8b", "compressed by gzip", "decompress it first"),
    (0, b"<", "XML or HTML", "give the model's file"),
    (0, b"{", "JSON", "give the model's file"),
)


def kind_of(data: bytes) -> str:
    """Return what a file seems to be and a remedy; "" for a file that may be an ONNX model.

    >>> kind_of(b"PK\\x03\\x04")[:13]
    'a ZIP archive'
    """
    for place, start, kind, remedy in KINDS:
        if data[place:].startswith(start):
            return f"{kind}: {remedy}"
    return ""


def parsed(model: Any) -> tuple[Any, Path | None]:
    """Return (ModelProto, the folder of its file) of a path, bytes, an onnx.ModelProto or a PyTorch program.

    Raises ModelError if the model is no ONNX model, OSError for a file that cannot be read."""
    onnx, model = messages(), model_of(model)
    if isinstance(model, onnx.ModelProto):
        return model, None
    folder, what = None, "the model"
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file (a model is a regular file)")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise ModelError(
                f"{path} has {size} bytes; a protobuf file holds at most 2 GiB: keep weights as external data"
            )
        model, folder, what = path.read_bytes(), path.parent, str(path)
    if not isinstance(model, (bytes, bytearray, memoryview)):
        raise ModelError(f"the model is a {type(model).__name__}; give a path, bytes or an onnx.ModelProto")
    if not len(model):
        raise ModelError("the model is empty: it has 0 bytes")
    data = bytes(model)
    if kind := kind_of(data[:64]):
        raise ModelError(f"not an ONNX model: {what} is {kind}")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # the module that defines protobuf's DecodeError depends on its version
        raise ModelError(f"not an ONNX model: {what} is no protobuf ({str(error)[:200]})") from error
    return proto, folder
