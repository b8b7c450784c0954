"""vkq: exact int8 inference on any Vulkan device, the same bits on every path."""

from . import integer
from ._version import __version__
from .device.capabilities import Capabilities, devices
from .errors import (
    AccumulatorOverflowError,
    ArgumentError,
    CompileError,
    DeviceError,
    DeviceLostError,
    DTypeError,
    NoDeviceError,
    OutOfMemoryError,
    PathError,
    SpecError,
    VkqError,
)
from .layout import Int8x4
from .ops.conv2d import Conv2d, conv2d
from .ops.linear import Linear, linear
from .ops.quantize import dequantize, quantize
from .ops.repack import flatten, reshape
from .qparams import QParams
from .runtime.device import Device, default_device
from .runtime.tensor import Tensor

__all__ = [
    "AccumulatorOverflowError",
    "ArgumentError",
    "Capabilities",
    "CompileError",
    "Conv2d",
    "DTypeError",
    "Device",
    "DeviceError",
    "DeviceLostError",
    "Int8x4",
    "Linear",
    "NoDeviceError",
    "OutOfMemoryError",
    "PathError",
    "QParams",
    "SpecError",
    "Tensor",
    "VkqError",
    "__version__",
    "conv2d",
    "default_device",
    "dequantize",
    "devices",
    "flatten",
    "integer",
    "linear",
    "quantize",
    "reshape",
]
