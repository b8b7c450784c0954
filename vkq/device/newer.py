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


def _backend() -> Any:
    import _cffi_backend  # type: ignore[import-untyped]  # which the binding is made with

    return _cffi_backend


@functools.cache
def _pointer(name: str) -> Any:
    """The type of a pointer to ``Vk<name>``. Made without cffi's parser of C, which takes longer to import
    than a device's features to ask for."""
    cffi = _backend()
    made = cffi.new_struct_type(f"struct Vk{name}")
    head = ("sType", cffi.new_primitive_type("int")), ("pNext", cffi.new_pointer_type(cffi.new_void_type()))
    flag = cffi.new_primitive_type("uint32_t")
    cffi.complete_struct_or_union(
        made, [(field, kind, -1) for field, kind in (*head, *((one, flag) for one in STRUCTS[name][1]))]
    )
    return cffi.new_pointer_type(made)


def struct(name: str) -> Any:
    """A zeroed ``Vk<name>`` with its sType set; the binding takes its address."""
    out = _backend().newp(_pointer(name))
    out.sType = STRUCTS[name][0]
    return out
