"""The Khronos validation layer: VKQ_VALIDATION=1 turns it on, with synchronization validation; in its place
``printf`` lets it show what shaders print (debugPrintfEXT), and ``bounds`` has it look whether they stay
within their buffers (GPU-assisted validation)."""

from __future__ import annotations

import os
from typing import Any

LAYER = "VK_LAYER_KHRONOS_validation"
EXTENSIONS = ("VK_EXT_debug_utils", "VK_EXT_validation_features")
_callbacks: list[Any] = []  # the loader calls them as long as the process lives


def wanted() -> bool:
    """Whether the environment asks for it."""
    return os.environ.get("VKQ_VALIDATION", "0") not in ("", "0")


def _printing() -> bool:
    return os.environ.get("VKQ_VALIDATION") == "printf"


def bounds() -> bool:
    """Whether the layer looks where shaders read and write. It knows where a VkBuffer ends, not what of it is
    bound, so that each buffer must be one by itself."""
    return os.environ.get("VKQ_VALIDATION") == "bounds"


def chain(vk: Any) -> Any:
    """What a VkInstanceCreateInfo's pNext takes: the layer does one of the three."""
    enable = (
        vk.VK_VALIDATION_FEATURE_ENABLE_DEBUG_PRINTF_EXT
        if _printing()
        else vk.VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT
        if bounds()
        else vk.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
    )
    return vk.VkValidationFeaturesEXT(pEnabledValidationFeatures=[enable])


def messenger(vk: Any, messages: list[str]) -> Any:
    """The VkDebugUtilsMessengerCreateInfoEXT of a messenger that appends what the layer says to
    *messages*."""

    def on_message(severity: Any, kind: Any, data: Any, user: Any) -> int:
        messages.append(vk.ffi.string(data.pMessage).decode(errors="replace"))
        return 0

    callback = vk.ffi.callback(
        "VkBool32(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT, "
        "const VkDebugUtilsMessengerCallbackDataEXT*, void*)",
        on_message,
    )
    _callbacks.append(callback)
    info = vk.ffi.new("VkDebugUtilsMessengerCreateInfoEXT*")
    info.sType = vk.VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT
    info.messageSeverity = vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT
    if not bounds():  # of which the layer warns that it leaves out buffers without descriptors
        info.messageSeverity |= vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
    if _printing():
        info.messageSeverity |= vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_INFO_BIT_EXT
    info.messageType = (
        vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | vk.VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT
    )
    info.pfnUserCallback = vk.ffi.cast("PFN_vkDebugUtilsMessengerCallbackEXT", callback)
    return info
