"""ONNX models on Vulkan devices, with results that equal those of ONNX Runtime byte for byte.

    session = vkq.onnx.InferenceSession("model.onnx")
    (scores,) = session.run(None, {"x": image})

This package needs the package ``onnx`` (``pip install vkq[onnx]``). Import it with ``import vkq.onnx``.
"""

from .._version import __version__
from ..errors import ModelError, UnsupportedModelError
from . import capi
from .binding import IOBinding
from .constant import ConstantInputWarning
from .inputs import NodeArg
from .language import LanguageModel
from .library import (
    OrtAllocatorType,
    OrtArenaCfg,
    OrtDevice,
    OrtMemoryInfo,
    OrtMemType,
    create_and_register_allocator,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    preload_dlls,
    print_debug_info,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
)
from .options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    IgnoredWarning,
    ModelMetadata,
    RunOptions,
    SessionOptions,
)
from .pytorch import as_torch
from .reader import Model, read
from .session import InferenceSession
from .values import OrtValue

SessionIOBinding = IOBinding
OrtValueVector = list

load = InferenceSession  # ``vkq.onnx.load(path)`` opens a session

__all__ = [
    "ConstantInputWarning",
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
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtDevice",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtValue",
    "OrtValueVector",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "UnsupportedModelError",
    "__version__",
    "as_torch",
    "capi",
    "create_and_register_allocator",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "load",
    "preload_dlls",
    "print_debug_info",
    "read",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]
