"""Which memory types tensors and copies live in."""

from __future__ import annotations

import dataclasses

from ..device.capabilities import Capabilities
from ..errors import ArgumentError, DeviceError

# Types that need a feature, or another use than a storage buffer.
_UNUSABLE = frozenset(
    {"protected", "lazily_allocated", "device_coherent_amd", "device_uncached_amd", "rdma_capable_nv"}
)


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """Memory types: ``own`` for tensors (``mapped`` where the host reads and writes it), ``staging`` for what
    is copied."""

    own: int
    mapped: bool
    staging: int


def plan_memory(c: Capabilities, allowed: int, staging: bool | None) -> MemoryPlan:
    """Chooses among the types whose bits are set in *allowed*.

    Where all of the device's memory is the host's too, and cached, nothing needs to be copied: *staging* None
    decides by that, True copies all the same, and False is refused (ArgumentError) where there is no such
    memory.
    """
    flags = {i: t.flags for i, t in enumerate(c.memory_types) if allowed >> i & 1 and not t.flags & _UNUSABLE}
    heap = {i: c.memory_types[i].heap_bytes for i in flags}
    host = [i for i in flags if {"host_visible", "host_coherent"} <= flags[i]]
    local = [i for i in flags if "device_local" in flags[i]]
    if not host or not local:
        raise DeviceError(
            f"{c.name} offers no {'host-coherent' if local else 'device-local'} memory for storage buffers"
        )
    largest = max(heap[i] for i in local)
    shared = [i for i in local if i in host and "host_cached" in flags[i] and heap[i] == largest]
    if staging is False and not shared:
        raise ArgumentError(
            f"{c.name} has no cached device memory that the host sees; staging=False cannot be"
        )
    # The host reads what is copied, and reading uncached memory is slow.
    copies = max(host, key=lambda i: ("host_cached" in flags[i], "device_local" not in flags[i]))
    if shared and not staging:
        return MemoryPlan(shared[0], True, copies)
    return MemoryPlan(max(local, key=lambda i: (heap[i], "host_visible" not in flags[i])), False, copies)
