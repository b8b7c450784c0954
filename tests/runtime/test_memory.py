"""Tests of the choice of memory types, for tables of memory types like those of real devices."""

import dataclasses

import pytest

import vkq
from vkq.device.capabilities import Capabilities, MemoryType
from vkq.runtime.memory import MemoryPlan, plan_memory

GiB = 1 << 30
LOCAL, HOST, CACHED = (
    "device_local",
    ("host_visible", "host_coherent"),
    ("host_visible", "host_coherent", "host_cached"),
)


def table(*rows: tuple[tuple[str, ...], int]) -> tuple[MemoryType, ...]:
    return tuple(MemoryType(frozenset(flags), size) for flags, size in rows)


TABLES = {
    "one type for all": (table(((LOCAL, *CACHED), 2 * GiB)), MemoryPlan(0, True, 0)),
    "a card": (table((HOST, 8 * GiB), ((LOCAL,), 24 * GiB), (CACHED, 8 * GiB)), MemoryPlan(1, False, 2)),
    "a card with a small window": (
        table(((LOCAL,), 24 * GiB), (HOST, 8 * GiB), (CACHED, 8 * GiB), ((LOCAL, *HOST), GiB // 4)),
        MemoryPlan(0, False, 2),
    ),
    "a card seen whole, and uncached": (
        table(((LOCAL, *HOST), 24 * GiB), ((LOCAL,), 24 * GiB), (CACHED, GiB)),
        MemoryPlan(1, False, 2),
    ),
    "a phone: local, coherent, cached": (
        table(((LOCAL,), 4 * GiB), ((LOCAL, *HOST), 4 * GiB), ((LOCAL, *CACHED), 4 * GiB)),
        MemoryPlan(2, True, 2),
    ),
    "only memory that the host does not cache": (table(((LOCAL, *HOST), 4 * GiB)), MemoryPlan(0, False, 0)),
    "a tiler with lazily allocated memory": (
        table(((LOCAL, "lazily_allocated"), 9 * GiB), ((LOCAL, *CACHED), 4 * GiB)),
        MemoryPlan(1, True, 1),
    ),
    "types that need a feature": (
        table(
            ((LOCAL, "protected"), GiB),
            ((LOCAL, "device_coherent_amd"), 9 * GiB),
            ((LOCAL,), GiB),
            (CACHED, GiB),
        ),
        MemoryPlan(2, False, 3),
    ),
}


def having(types: tuple[MemoryType, ...], device: vkq.Device) -> Capabilities:
    return dataclasses.replace(device.capabilities, memory_types=types)


@pytest.mark.parametrize("name", TABLES)
def test_the_types_chosen(any_device: vkq.Device, name: str) -> None:
    types, want = TABLES[name]
    assert plan_memory(having(types, any_device), 2**32 - 1, None) == want


def test_types_that_buffers_cannot_have_are_left_out(any_device: vkq.Device) -> None:
    types = table(((LOCAL,), 24 * GiB), ((LOCAL,), 24 * GiB), (HOST, GiB), (CACHED, GiB))
    assert plan_memory(having(types, any_device), 0b0110, None) == MemoryPlan(1, False, 2)
    with pytest.raises(vkq.DeviceError, match="no device-local memory for storage buffers"):
        plan_memory(having(types, any_device), 0b1100, None)
    with pytest.raises(vkq.DeviceError, match="no host-coherent memory for storage buffers"):
        plan_memory(having(types, any_device), 0b0011, None)


def test_staging_is_taken_or_refused(any_device: vkq.Device) -> None:
    shared = having(table(((LOCAL, *CACHED), GiB)), any_device)
    assert plan_memory(shared, 1, True) == MemoryPlan(0, False, 0)
    assert plan_memory(shared, 1, False) == MemoryPlan(0, True, 0)
    with pytest.raises(vkq.ArgumentError, match="which staging=False needs"):
        plan_memory(having(TABLES["a card"][0], any_device), 7, False)


def test_a_type_that_buffers_cannot_have_is_refused_natively(device: vkq.Device) -> None:
    assert device.context.buffer_memory_types() & 1
    for wrong in (31, 32, 200):
        arena = device.context.arena(wrong, False, 16, 1024, 1 << 62, 0)
        with pytest.raises(vkq.DeviceError, match="cannot hold storage buffers"):
            arena.allocate(1024)


def test_no_buffer_is_larger_than_the_heap(any_device: vkq.Device) -> None:
    """vkq itself refuses a buffer larger than the heap, because some drivers would crash or swap for
    minutes."""
    small = tuple(dataclasses.replace(t, heap_bytes=1 << 20) for t in any_device.capabilities.memory_types)
    with vkq.Device(capabilities=having(small, any_device)) as device:
        device.allocate(1 << 20)
        with pytest.raises(vkq.OutOfMemoryError, match="above the size of the memory heap of 1048576"):
            device.allocate((1 << 20) + 1)
