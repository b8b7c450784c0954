"""The Khronos validation layer: VKQ_VALIDATION=1 turns it on, with synchronization validation; in its place
``printf`` lets it show what shaders print (debugPrintfEXT), and ``bounds`` has it look whether they stay
within their buffers (GPU-assisted validation)."""

from __future__ import annotations

import os

LAYER = "VK_LAYER_KHRONOS_validation"
EXTENSIONS = ("VK_EXT_debug_utils", "VK_EXT_validation_features")
INFO, WARNING, ERROR = 0x10, 0x100, 0x1000


def wanted() -> bool:
    """Whether the environment asks for it."""
    return os.environ.get("VKQ_VALIDATION", "0") not in ("", "0")


def _printing() -> bool:
    return os.environ.get("VKQ_VALIDATION") == "printf"


def bounds() -> bool:
    """Whether the layer looks where shaders read and write. It knows where a VkBuffer ends, not what of it is
    bound, so that each buffer must be one by itself."""
    return os.environ.get("VKQ_VALIDATION") == "bounds"


def enabled() -> list[int]:
    """VkValidationFeatureEnableEXT: the layer does one of the three."""
    return [3 if _printing() else 0 if bounds() else 4]


def severities() -> int:
    """VkDebugUtilsMessageSeverityFlagBitsEXT of the messages that are kept."""
    return (
        ERROR
        | (0 if bounds() else WARNING)  # bounds() warns that it leaves out buffers without descriptors
        | (INFO if _printing() else 0)
    )
