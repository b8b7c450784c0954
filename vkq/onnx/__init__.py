"""ONNX models on Vulkan devices, with ONNX Runtime's bytes.

    session = vkq.onnx.InferenceSession("model.onnx")
    (scores,) = session.run(None, {"x": image})

Needs the package ``onnx`` (``pip install vkq[onnx]``). Imported with ``import vkq.onnx``.
"""

from ..errors import ModelError, UnsupportedModelError
from .binding import IOBinding
from .feed import NodeArg
from .language import LanguageModel
from .options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    IgnoredWarning,
    ModelMetadata,
    RunOptions,
    SessionOptions,
    get_all_providers,
    get_available_providers,
    get_device,
    set_default_logger_severity,
)
from .pytorch import as_torch
from .reader import Model, read
from .session import InferenceSession, load
from .values import OrtValue

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "IgnoredWarning",
    "InferenceSession",
    "LanguageModel",
    "Model",
    "ModelError",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "UnsupportedModelError",
    "as_torch",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "load",
    "read",
    "set_default_logger_severity",
]
