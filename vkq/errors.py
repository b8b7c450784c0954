"""All exceptions of vkq: a base class, and subclasses that also derive from the matching built-in
exception.

A message states the given numbers, the rule, and the remedy.
"""

from collections.abc import Iterable, Sequence


class VkqError(Exception):
    """Base class of every error that vkq raises on purpose."""


class ArgumentError(VkqError, ValueError):
    """A value, shape or option that the operation does not support. The message names the sizes and rule."""


class DTypeError(VkqError, TypeError):
    """An array or argument has a type that the operation does not support."""


class MethodError(ArgumentError):
    """A method requested by name cannot compute this problem. The message says what the method lacks."""


class AccumulatorOverflowError(VkqError, OverflowError):
    """The int32 accumulator of an int8 operation could overflow with the given weights."""


class SpecError(VkqError, ValueError):
    """A YAML description (shader or layout) breaks its schema; the message begins with file:line."""


class CompileError(VkqError, RuntimeError):
    """GLSL did not compile, no compiler was found, or the SPIR-V disagrees with its YAML."""


class ModelError(VkqError, ValueError):
    """A model file is malformed or breaks a rule of its format. The message names the node and the rule."""


class UnsupportedModelError(ModelError, NotImplementedError):
    """A model with nodes that cannot run on the device; ``refusals`` lists these nodes with the reasons."""

    def __init__(self, message: str, refusals: Sequence[str] = ()):
        super().__init__(message)
        self.refusals = tuple(refusals)


class DeviceError(VkqError, RuntimeError):
    """A Vulkan call failed. ``result`` is the VkResult, ``call`` the Vulkan function, if known."""

    def __init__(self, message: str, result: int | None = None, call: str | None = None):
        super().__init__(message)
        self.result = result
        self.call = call


class TimedOutError(VkqError, TimeoutError):
    """A run gave no result within its timeout. The device finishes the work that it has begun."""


class NoDeviceError(DeviceError):
    """No Vulkan loader, no driver, or no device that can run vkq's shaders."""


class DeviceLostError(DeviceError):
    """The device was lost (VK_ERROR_DEVICE_LOST). It stays lost: open a new ``vkq.Device``."""


class PathError(DeviceError):
    """The requested path cannot run on this device. The message names what is missing."""


class OutOfMemoryError(DeviceError, MemoryError):
    """The device or the host ran out of memory. The device stays usable."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'resnet50'?"`` if one of the *known* names is similar to *word*, else ""."""
    from difflib import get_close_matches  # imported here, because the import is slow and only errors need it

    found = get_close_matches(word[:100], list(known), 1, 0.6)
    return f"; did you mean {found[0]!r}?" if found else ""
