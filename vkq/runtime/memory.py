"""A device's memory: the memory types and arenas for tensors and for copies."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from ..device import validation
from ..device.capabilities import Capabilities
from ..errors import ArgumentError, DeviceError, OutOfMemoryError
from .buffer import Arena, Buffer

BLOCK_BYTES = 16 << 20
STAGING_BYTES = 64 << 20  # maximum host memory for copies to and from memory that the host cannot access
STAGING_CHUNK = 16 << 20  # bytes of one copy; the host fills one buffer while the device reads another
UNUSED_BYTES = 256 << 20  # maximum unused memory of large blocks that is kept for reuse
# Maximum scratch memory that plans share. Larger scratch memory is allocated separately.
SCRATCH_KEPT_BYTES = 64 << 20
# Memory types that need a feature, or that are not meant for storage buffers.
_UNUSABLE = frozenset(
    {"protected", "lazily_allocated", "device_coherent_amd", "device_uncached_amd", "rdma_capable_nv"}
)


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """Indices of memory types."""

    own: int  # the type for tensors
    mapped: bool  # whether the host can access tensors
    staging: int  # the type for copies


def plan_memory(c: Capabilities, allowed: int, staging: bool | None) -> MemoryPlan:
    """Return the memory types to use, of those whose bits are set in *allowed*.

    No copies are needed if the host can access all of the device's memory and it is cached. *staging*:
    None: copy if needed; True: always copy; False: raise ArgumentError if copies are needed.
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
            f"{c.name} has no cached device memory that the host can access, which staging=False"
            " needs; leave staging out"
        )
    # The memory type for copies: cached if possible, because the host reads from it.
    copies = max(host, key=lambda i: ("host_cached" in flags[i], "device_local" not in flags[i]))
    if shared and not staging:
        return MemoryPlan(shared[0], True, copies)
    return MemoryPlan(max(local, key=lambda i: (heap[i], "host_visible" not in flags[i])), False, copies)


class DeviceMemory:
    """The two arenas of an open device: one for tensors, weights and scratch memory, one for staging copies.

    *context* is the extension's Context; `plan_memory` describes *staging*.
    """

    def __init__(self, context: Any, c: Capabilities, staging: bool | None):
        plan = plan_memory(c, context.buffer_memory_types(), staging)
        heaps = {i: t.heap_bytes for i, t in enumerate(c.memory_types)}
        self._context, self._name = context, c.name
        self._largest, rule = _largest(c, heaps[plan.own])
        self._largest_rule = f"{rule} of {self._largest}"

        def arena(memory_type: int, mapped: bool, keep: int) -> Arena:
            most, _ = _largest(c, heaps[memory_type])
            # For the validation of bounds, block size 1: every buffer is a separate block, and freed blocks
            # are not reused.
            block, kept = (1, 0) if validation.bounds() else (BLOCK_BYTES, keep)
            made: Arena = context.arena(memory_type, mapped, c.buffer_alignment, block, most, kept)
            return made

        self.arena = arena(plan.own, plan.mapped, min(UNUSED_BYTES, heaps[plan.own] // 16))
        self.staging = arena(plan.staging, True, 0)
        limit = min(STAGING_BYTES, max(BLOCK_BYTES, heaps[plan.staging] // 16))
        context.set_arenas(self.arena, SCRATCH_KEPT_BYTES, self.staging, limit, STAGING_CHUNK)

    def allocate(self, size: int) -> Buffer:
        """Allocate at least *size* bytes. If memory is short, free the memory of finished work and try
        again. Raises OutOfMemoryError if that does not suffice."""
        if size <= self._largest:
            with contextlib.suppress(OutOfMemoryError):
                return self.arena.allocate(size)
        self._context.check()
        if size > self._largest:
            raise OutOfMemoryError(
                f"{self._name}: {size} bytes requested at once, above {self._largest_rule}; use smaller"
                " tensors"
            )
        self._context.queue.trim()
        try:
            return self.arena.allocate(size)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{self._name}: no memory for {size} bytes more ({self.arena.allocated_bytes} bytes are"
                f" allocated): {error}",
                error.result,
                error.call,
            ) from error


def _largest(c: Capabilities, heap_bytes: int) -> tuple[int, str]:
    """Return the maximum bytes of one allocation from a heap, and the name of the limit that sets it."""
    names = ("maxMemoryAllocationSize", "maxBufferSize")
    limits = {f"this device's {name}": c.properties[name] for name in names}
    limits["the size of the memory heap"] = heap_bytes
    return min((limit, name) for name, limit in limits.items() if limit)
