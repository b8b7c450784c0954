"""The VkInstance of the process, and its physical devices. This module also opens VkDevices with the
features that vkq uses.

The compiled extension loads libvulkan at the first use, so ``import vkq`` works on a machine without
Vulkan.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from ..errors import DeviceError, DeviceLostError, NoDeviceError, OutOfMemoryError, VkqError
from ..turns import FORKED, Turns
from . import drivers, install_hint, validation
from .extension import native_module
from .overlap import long_call
from .structs import CORE, FEATURES

# The file names of libvulkan, in the order in which they are tried. Android and Termux have only the second.
LIBRARIES = ("libvulkan.so.1", "libvulkan.so", "libvulkan.1.dylib", "libMoltenVK.dylib")
VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY, VK_ERROR_DEVICE_LOST = -1, -2, -4
VK_ERROR_LAYER_NOT_PRESENT, VK_ERROR_EXTENSION_NOT_PRESENT = -6, -7
RESULTS = {
    0: "VK_SUCCESS", 1: "VK_NOT_READY", 2: "VK_TIMEOUT", -1: "VK_ERROR_OUT_OF_HOST_MEMORY",
    -2: "VK_ERROR_OUT_OF_DEVICE_MEMORY", -3: "VK_ERROR_INITIALIZATION_FAILED", -4: "VK_ERROR_DEVICE_LOST",
    -5: "VK_ERROR_MEMORY_MAP_FAILED", -6: "VK_ERROR_LAYER_NOT_PRESENT", -7: "VK_ERROR_EXTENSION_NOT_PRESENT",
    -8: "VK_ERROR_FEATURE_NOT_PRESENT", -9: "VK_ERROR_INCOMPATIBLE_DRIVER", -10: "VK_ERROR_TOO_MANY_OBJECTS",
    -11: "VK_ERROR_FORMAT_NOT_SUPPORTED", -12: "VK_ERROR_FRAGMENTED_POOL", -13: "VK_ERROR_UNKNOWN",
    -1000012000: "VK_ERROR_INVALID_SHADER_NV", -1000069000: "VK_ERROR_OUT_OF_POOL_MEMORY",
    -1000072003: "VK_ERROR_INVALID_EXTERNAL_HANDLE", -1000161000: "VK_ERROR_FRAGMENTATION",
    -1000174001: "VK_ERROR_NOT_PERMITTED",
}  # fmt: skip
PORTABILITY = 1  # VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
_NO_LAYER = "VKQ_VALIDATION=1 asks for the validation layer: install vulkan-validationlayers, or unset it"
_lock = Turns("opening Vulkan")
_instance: Instance | None = None


@functools.cache
def loaded() -> Any:
    """Load libvulkan. Return the extension. Raises NoDeviceError if libvulkan is missing."""
    native = native_module()
    if why := native.load_vulkan(LIBRARIES):
        raise NoDeviceError(
            f"the Vulkan loader, libvulkan, could not be loaded ({why}); install it:"
            f" {install_hint.loader()}; and a driver: {install_hint.driver()}"
        )
    return native


def result_name(result: int) -> str:
    """Return the name of a VkResult, such as ``VK_ERROR_DEVICE_LOST``."""
    return RESULTS.get(result, f"VkResult {result}")


def error_for(result: int, call: str) -> VkqError:
    """Return the exception for a failed Vulkan call. The extension calls this function, and raises the
    result."""
    text = f"{call} failed with {result_name(result)} ({result})"
    if result == VK_ERROR_DEVICE_LOST:
        return DeviceLostError(f"the device is lost: {text}; open a new vkq.Device", result, call)
    if result in (VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY):
        return OutOfMemoryError(
            f"{text}; free tensors or use smaller ones, the device stays usable", result, call
        )
    return DeviceError(text, result, call)


def never_computed(result: int, call: str) -> VkqError:
    """Return the error for reading a result that a failed submission should have computed."""
    cause = error_for(result, call)
    return type(cause)(
        f"this tensor was never computed, because its submission failed ({cause}); compute it again",
        result,
        call,
    )


def check(result: int, call: str) -> None:
    """Raise the exception for a VkResult if it is an error, that is, negative."""
    if result < 0:
        raise error_for(result, call)


class Instance:
    """The VkInstance; with the Khronos validation layer if VKQ_VALIDATION is set. ``native``: the object of
    the extension that queries Vulkan."""

    def __init__(self) -> None:
        loaded()
        self.pid = os.getpid()
        self.drivers = drivers.tried()
        with drivers.loader_environment(self.drivers.environment):
            self.native = self._created()

    def _created(self) -> Any:
        layers, extensions, checks, severities = [], [], [], 0
        if validation.wanted():
            layers, extensions = [validation.LAYER], list(validation.EXTENSIONS)
            checks, severities = validation.enabled(), validation.severities()
        # Without the flag PORTABILITY, the loader hides devices such as MoltenVK's, but old loaders refuse
        # the flag. So try it first. (A query whether the loader knows the flag would load every driver once
        # more.)
        result, portability = VK_ERROR_EXTENSION_NOT_PRESENT, ["VK_KHR_portability_enumeration"]
        for more, flags in ((portability, PORTABILITY), ([], 0)):
            create = functools.partial(
                loaded().Instance, layers, extensions + more, flags, checks, severities
            )
            try:
                return long_call(create)
            except VkqError as error:
                result = getattr(error, "result", None) or 0
                if result != VK_ERROR_EXTENSION_NOT_PRESENT:
                    break
        raise NoDeviceError(
            f"vkCreateInstance failed with {result_name(result)} ({result}): "
            + (_NO_LAYER if result == VK_ERROR_LAYER_NOT_PRESENT else install_hint.no_driver())
            + "".join(f"; {one}" for one in self.drivers.refused),
            result,
            "vkCreateInstance",
        )

    def physical_devices(self) -> list[int]:
        """Return the handles of the physical devices, in the loader's order. The list may be empty."""
        found: list[int] = self.native.physical_devices()
        return found


def instance() -> Instance:
    """Return the instance of this process; the first call creates it. Raises DeviceError in a forked child:
    Vulkan objects do not survive a fork."""
    global _instance
    with _lock:
        if _instance is None:
            _instance = Instance()
        if _instance.pid != os.getpid():
            raise DeviceError(FORKED)
        return _instance


def loader_version() -> str:
    """Return the Vulkan version of the loader, such as 1.3.239."""
    packed = loaded().loader_version()
    return f"{packed >> 22 & 0x7F}.{packed >> 12 & 0x3FF}.{packed & 0xFFF}"


def refused_drivers() -> tuple[drivers.Refused, ...]:
    """Return the drivers that this process does not load: they failed in a child process, or have invalid
    manifests."""
    return instance().drivers.refused


def validation_messages() -> list[str]:
    """Return all messages of the Khronos validation layer so far. Without VKQ_VALIDATION there are none."""
    return [text.decode(errors="replace") for text in native_module().messages()] if _instance else []


def open_device(
    physical: int, family: int, features: dict[str, bool], extensions: set[str]
) -> tuple[int, int]:
    """Open a VkDevice with one queue of the family *family*, and with every feature of `structs.FEATURES`
    that *features* says is supported. Return (device, queue)."""
    table = [each for each in FEATURES if any(features.get(field) for field in each.fields)]
    wanted = [each.extension for each in table if each.extension in extensions]
    # The shaders need float controls. Vulkan requires portability_subset to be enabled where it exists.
    wanted += [e for e in ("VK_KHR_shader_float_controls", "VK_KHR_portability_subset") if e in extensions]
    create = functools.partial(
        instance().native.create_device, physical, family, wanted, CORE.enabling(features)[1],
        [each.enabling(features) for each in table],
    )  # fmt: skip
    made: tuple[int, int] = long_call(create)
    return made
