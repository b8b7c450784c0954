"""Structs of Vulkan that are newer than the binding."""

from __future__ import annotations

import functools
from typing import Any

# sType and all fields, each a VkBool32.
STRUCTS = {
    "PhysicalDeviceShaderBfloat16FeaturesKHR": (
        1000141000,
        ("shaderBFloat16Type", "shaderBFloat16DotProduct", "shaderBFloat16CooperativeMatrix"),
    )
}


@functools.cache
def _ffi() -> Any:
    import cffi  # type: ignore[import-untyped]  # which the binding is made with

    ffi = cffi.FFI()
    for name, (_, fields) in STRUCTS.items():
        ffi.cdef(f"typedef struct {{ int sType; void* pNext; uint32_t {', '.join(fields)}; }} Vk{name};")
    return ffi


def struct(name: str) -> Any:
    """A zeroed ``Vk<name>`` with its sType set; the binding takes its address."""
    out = _ffi().new(f"Vk{name}*")
    out.sType = STRUCTS[name][0]
    return out
