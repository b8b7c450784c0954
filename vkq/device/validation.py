"""The Khronos validation layer. VKQ_VALIDATION=1 turns it on with synchronization validation; ``printf``
makes it show what shaders print (debugPrintfEXT) instead, and ``bounds`` makes it check that shaders stay
within their buffers (GPU-assisted validation)."""

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
    """Return True if the layer checks where shaders read and write. It knows the end of a VkBuffer, not the
    range that is bound, so each vkq buffer must then be a VkBuffer of its own."""
    return os.environ.get("VKQ_VALIDATION") == "bounds"


def enabled() -> list[int]:
    """Return the VkValidationFeatureEnableEXT of one of the three modes."""
    return [3 if _printing() else 0 if bounds() else 4]


def severities() -> int:
    """Return the VkDebugUtilsMessageSeverityFlagBitsEXT of the messages that are kept."""
    return (
        ERROR
        | (0 if bounds() else WARNING)  # bounds mode warns about buffers without descriptors
        | (INFO if _printing() else 0)
    )
