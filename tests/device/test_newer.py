"""Structs that the binding does not know lie in memory as a C compiler would have them."""

from __future__ import annotations

import cffi  # type: ignore[import-untyped]
import pytest

from vkq.device import newer, vulkan


@pytest.mark.parametrize("name", newer.STRUCTS)
def test_structs(name: str) -> None:
    number, fields = newer.STRUCTS[name]
    parsed = cffi.FFI()
    parsed.cdef(f"typedef struct {{ int sType; void* pNext; uint32_t {', '.join(fields)}; }} {name};")
    made, ffi = vulkan.struct(name), vulkan.binding().ffi
    assert (made.sType, made.pNext, [getattr(made, field) for field in fields]) == (
        number, ffi.NULL, [0] * len(fields),
    )  # fmt: skip
    assert len(ffi.buffer(made)) == parsed.sizeof(name)
    for i, field in enumerate(fields, 1):
        setattr(made, field, i)
        at = parsed.offsetof(name, field)
        assert bytes(ffi.buffer(made)[at : at + 4]) == i.to_bytes(4, "little")
    assert vulkan.chain([made, vulkan.struct(name)]) == ffi.cast("void*", made)
    assert made.pNext != ffi.NULL
