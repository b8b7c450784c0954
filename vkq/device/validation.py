"""The Khronos validation layer, which the environment variable VKQ_VALIDATION turns on:

- ``1``: with synchronization validation.
- ``printf``: with the output of shaders (debugPrintfEXT) instead.
- ``bounds``: with a check that shaders stay within their buffers (GPU-assisted validation) instead."""

from __future__ import annotations

import os

LAYER = "VK_LAYER_KHRONOS_validation"
EXTENSIONS = ("VK_EXT_debug_utils", "VK_EXT_validation_features")
INFO, WARNING, ERROR = 0x10, 0x100, 0x1000


def wanted() -> bool:
    """Return True if VKQ_VALIDATION turns the layer on."""
    return os.environ.get("VKQ_VALIDATION", "0") not in ("", "0")


def _printing() -> bool:
    return os.environ.get("VKQ_VALIDATION") == "printf"


def bounds() -> bool:
    """Return True if the layer checks that shaders stay within their buffers. Each buffer of vkq must then
    be a separate VkBuffer: the layer knows the size of a VkBuffer, but not of a bound range."""
    return os.environ.get("VKQ_VALIDATION") == "bounds"


def enabled() -> list[int]:
    """Return the VkValidationFeatureEnableEXT values for the requested mode of the layer."""
    return [3 if _printing() else 0 if bounds() else 4]


def severities() -> int:
    """Return the severities of the messages to keep, as VkDebugUtilsMessageSeverityFlagBitsEXT."""
    return (
        ERROR
        # in the mode "bounds", the layer warns about buffers without descriptors
        | (0 if bounds() else WARNING)
        | (INFO if _printing() else 0)
    )
