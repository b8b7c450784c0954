"""Opens models of both formats. A model is a .tflite file if its identifier or suffix says so, else an ONNX
file."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..onnx import reader
from ..onnx.cpu import cpu_session
from ..onnx.reader import Model
from ..onnx.session import InferenceSession
from . import reader as tflite_reader
from . import session as tflite_session
from .file import is_tflite
from .litert import Litert

SUFFIXES = (".onnx", ".tflite")
REFEREES = ("onnxruntime", "litert")  # the reference libraries for ONNX files and for .tflite files


def read_model(model: Any) -> Model:
    """Read an ONNX or .tflite model and return it."""
    return tflite_reader.read(model) if is_tflite(model) else reader.read(model)


def session_of(model: Any) -> type[InferenceSession]:
    """Return the class InferenceSession for the format of a model."""
    return tflite_session.InferenceSession if is_tflite(model) else InferenceSession


def check_referee(model: Any, name: str | None, option: str) -> None:
    """Raise ArgumentError if *name* is not the reference library for the model's format. *option*: the
    command-line option that gave the name."""
    own = REFEREES[is_tflite(model)]
    if name not in (None, own):
        raise ArgumentError(f"{option} is {name}; for this model it must be {own}")


def referee(model: Any, needed: str) -> Any:
    """Open a model in its reference library, ONNX Runtime or LiteRT. *needed*: the purpose, for error
    messages."""
    return Litert(model, needed) if is_tflite(model) else cpu_session(model, needed)
