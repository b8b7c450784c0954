"""The Khronos validation layer. VKQ_VALIDATION=1 turns it on with synchronization validation; ``printf``
shows the output of shaders (debugPrintfEXT) instead, and ``bounds`` checks that shaders stay within their
buffers (GPU-assisted validation)."""

from __future__ import annotations

import os

LAYER = "VK_LAYER_KHRONOS_validation"
EXTENSIONS = ("VK_EXT_debug_utils", "VK_EXT_validation_features")
INFO, WARNING, ERROR = 0x10, 0x100, 0x1000


def wanted() -> bool:
    """Return True if the environment requests the layer."""
    return os.environ.get("VKQ_VALIDATION", "0") not in ("", "0")


def _printing() -> bool:
    return os.environ.get("VKQ_VALIDATION") == "printf"


def bounds() -> bool:
    """Return True if the layer checks the bounds of shaders' accesses. It knows the size of a VkBuffer, not
    of the bound range, so each vkq buffer must then be a separate VkBuffer."""
    return os.environ.get("VKQ_VALIDATION") == "bounds"


def enabled() -> list[int]:
    """Return the VkValidationFeatureEnableEXT values for the requested mode of the layer."""
    return [3 if _printing() else 0 if bounds() else 4]


def severities() -> int:
    """Return the VkDebugUtilsMessageSeverityFlagBitsEXT of the messages that are kept."""
    return (
        ERROR
        | (0 if bounds() else WARNING)  # bounds mode warns about buffers without descriptors
        | (INFO if _printing() else 0)
    )
