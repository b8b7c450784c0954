"""Opens models of both formats. A model is a .tflite file by its identifier or suffix, else an ONNX file."""

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
    """Return a model of either format."""
    return tflite_reader.read(model) if is_tflite(model) else reader.read(model)


def session_of(model: Any) -> type[InferenceSession]:
    """Return the session class for a model."""
    return tflite_session.InferenceSession if is_tflite(model) else InferenceSession


def check_referee(model: Any, name: str | None, option: str) -> None:
    """Raise ArgumentError if *name* is the reference library of the other format."""
    own = REFEREES[is_tflite(model)]
    if name not in (None, own):
        raise ArgumentError(f"{option} is {name}; for this model it must be {own}")


def referee(model: Any, needed: str) -> Any:
    """Return a model's session in its reference library, ONNX Runtime or LiteRT."""
    return Litert(model, needed) if is_tflite(model) else cpu_session(model, needed)
