"""vkq: exact int8 inference on any Vulkan device, the same bits on every path."""

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .device.capabilities import Capabilities
from .device.query import devices
from .errors import (
    AccumulatorOverflowError,
    ArgumentError,
    CompileError,
    DeviceError,
    DeviceLostError,
    DTypeError,
    MethodError,
    ModelError,
    NoDeviceError,
    OutOfMemoryError,
    PathError,
    SpecError,
    TimedOutError,
    UnsupportedModelError,
    VkqError,
)
from .layout.pack import Int8x4
from .numerics.calibration import Calibrator, quantize_weight
from .numerics.grouped import GroupedWeight
from .numerics.qparams import QParams
from .numerics.tables import clamp, leaky_relu
from .ops.conv2d import Conv2d, conv2d
from .ops.conv_transpose2d import ConvTranspose2d, conv_transpose2d
from .ops.elementwise import add, mul, sub
from .ops.explain import Steps, explain
from .ops.linear import Linear, linear
from .ops.matmul import matmul
from .ops.mean import reduce_mean
from .ops.pool import avg_pool2d, global_avg_pool2d, max_pool2d
from .ops.quantize import dequantize, quantize
from .ops.repack import flatten, reshape
from .ops.resize import resize
from .ops.shape import concat, pad, transpose
from .ops.softmax import softmax
from .ops.table import lookup, requantize, table_of, unary
from .ops.tables import lookup_axis, lookup_pair
from .ops.take import slice_ as slice
from .ops.take import split, take
from .runtime.device import Device
from .runtime.opened import default_device
from .runtime.recording import Recording
from .runtime.tensor import Tensor
from .runtime.transfer import empty_pinned

if TYPE_CHECKING:
    from . import integer
    from .player.load import load

__all__ = [
    "AccumulatorOverflowError",
    "ArgumentError",
    "Calibrator",
    "Capabilities",
    "CompileError",
    "Conv2d",
    "ConvTranspose2d",
    "DTypeError",
    "Device",
    "DeviceError",
    "DeviceLostError",
    "GroupedWeight",
    "Int8x4",
    "Linear",
    "MethodError",
    "ModelError",
    "NoDeviceError",
    "OutOfMemoryError",
    "PathError",
    "QParams",
    "Recording",
    "SpecError",
    "Steps",
    "Tensor",
    "TimedOutError",
    "UnsupportedModelError",
    "VkqError",
    "__version__",
    "add",
    "avg_pool2d",
    "clamp",
    "concat",
    "conv2d",
    "conv_transpose2d",
    "default_device",
    "dequantize",
    "devices",
    "empty_pinned",
    "explain",
    "flatten",
    "global_avg_pool2d",
    "integer",
    "leaky_relu",
    "linear",
    "load",
    "lookup",
    "lookup_axis",
    "lookup_pair",
    "matmul",
    "max_pool2d",
    "mul",
    "pad",
    "quantize",
    "quantize_weight",
    "reduce_mean",
    "requantize",
    "reshape",
    "resize",
    "slice",
    "softmax",
    "split",
    "sub",
    "table_of",
    "take",
    "transpose",
    "unary",
]


# Attributes imported at their first use: {name: (module, attribute of it; None: the module itself)}.
_LATE = {"integer": ("integer", None), "load": ("player.load", "load")}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, inner = _LATE[name]
    found = importlib.import_module(f".{module}", __name__)
    return getattr(found, inner) if inner else found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
