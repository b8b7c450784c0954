"""Tests of the memory arena: ranges never overlap, are aligned, merge when they are freed, and all freed
bytes can be used again."""

import gc
import itertools
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vkq
from tests.runtime import work
from vkq.runtime.buffer import Arena, Buffer

BLOCK = 1024


def make_arena(device: vkq.Device, alignment: int = 64, keep: int = 0) -> Arena:
    """Return an arena of tiny blocks of host memory."""
    types = device.capabilities.memory_types
    kind = next(i for i, t in enumerate(types) if {"host_visible", "host_coherent"} <= t.flags)
    arena: Arena = device.context.arena(kind, True, alignment, BLOCK, 1 << 62, keep)
    return arena


@pytest.fixture
def allocations() -> Iterator[None]:
    """Count calls of vkAllocateMemory; `work.counted` returns the count."""
    with work.failing("vkAllocateMemory", 0):
        yield


# Steps of a test. A number from 0 on is a size to allocate (some are near the alignment or the block size). A
# negative number frees one of the allocated buffers.
STEPS = st.lists(
    st.one_of(
        st.integers(0, 200), st.sampled_from([63, 64, 65, 1023, 1024, 1025, 5000]), st.integers(-50, -1)
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS, alignment=st.sampled_from([1, 16, 64, 256]))
def test_ranges_are_disjoint_aligned_and_accounted_for(
    any_device: vkq.Device, steps: list[int], alignment: int
) -> None:
    arena = make_arena(any_device, alignment)
    held: list[Buffer] = []
    for step in steps:
        if step >= 0:
            held.append(arena.allocate(step))
            assert held[-1].bytes >= max(step, 1)
        elif held:
            held.pop(step % len(held))
        ranges = sorted((b.block, b.offset, b.offset + b.bytes) for b in held)
        for (block, _, end), (other, start, _) in itertools.pairwise(ranges):
            assert block != other or end <= start, "two buffers overlap"
        assert all(b.offset % max(alignment, 16) == 0 for b in held)
        assert all(b.offset + b.bytes <= b.block_bytes for b in held)
        assert arena.used_bytes == sum(b.bytes for b in held)
        assert arena.allocated_bytes >= arena.used_bytes
    usual = any(b.block_bytes == BLOCK for b in held)
    held.clear()
    assert arena.used_bytes == 0
    # All free ranges have merged: a whole block can be allocated without a call of vkAllocateMemory.
    if usual:
        before = arena.allocated_bytes
        whole = arena.allocate(BLOCK)
        assert (arena.allocated_bytes, whole.offset) == (before, 0)
        del whole
    arena.trim()
    assert arena.allocated_bytes == 0


def test_freed_neighbours_join_in_any_order(any_device: vkq.Device) -> None:
    for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):
        arena = make_arena(any_device)
        parts: dict[int, Buffer] = {i: arena.allocate(320) for i in range(3)}
        for i in order:
            del parts[i]
        assert arena.allocate(960).offset == 0, order
        assert arena.allocated_bytes == BLOCK


def test_the_smallest_hole_that_fits_is_taken(any_device: vkq.Device) -> None:
    arena = make_arena(any_device)
    held = [arena.allocate(size) for size in (256, 64, 128, 64, 512)]  # together these fill one block
    held[0] = held[2] = held[3]  # leaves holes of 256 and 128 bytes
    gc.collect()
    assert arena.allocate(BLOCK).offset == 0  # all freed ranges have merged to one block
    assert arena.allocate(100).offset == 320


def test_a_range_that_came_back_is_taken_again(any_device: vkq.Device) -> None:
    arena = make_arena(any_device)
    first, second = arena.allocate(64), arena.allocate(128)
    places = first.offset, second.offset
    del first, second
    second, first = arena.allocate(128), arena.allocate(64)
    assert (first.offset, second.offset) == places


def test_a_large_buffer_has_a_block_of_its_own_that_goes_with_it(any_device: vkq.Device) -> None:
    arena = make_arena(any_device)
    small, large = arena.allocate(10), arena.allocate(BLOCK + 1)
    assert arena.allocated_bytes == BLOCK + 1088
    del large
    assert arena.allocated_bytes == BLOCK
    assert arena.allocate(BLOCK - 64).block == small.block


def test_large_blocks_are_kept_for_the_next_up_to_a_limit(any_device: vkq.Device, allocations: None) -> None:
    arena = make_arena(any_device, keep=3 * BLOCK)
    for _ in range(100):
        large = arena.allocate(2 * BLOCK)
        del large
    assert work.counted() == 1
    two = [arena.allocate(2 * BLOCK) for _ in range(2)]
    assert work.counted() == 2
    del two
    assert arena.allocated_bytes == 2 * BLOCK, "the other is beyond what is kept"


def test_trim_gives_unused_blocks_back_and_keeps_the_others(any_device: vkq.Device) -> None:
    arena = make_arena(any_device)
    first, second = arena.allocate(BLOCK), arena.allocate(BLOCK)
    assert arena.allocated_bytes == 2 * BLOCK
    del first
    assert arena.allocated_bytes == 2 * BLOCK, "a block of the usual size is kept for the next buffer"
    arena.trim()
    assert (arena.allocated_bytes, arena.used_bytes) == (BLOCK, BLOCK)
    del second


@pytest.mark.parametrize("call", ["vkAllocateMemory", "vkCreateBuffer", "vkBindBufferMemory", "vkMapMemory"])
def test_a_failed_allocation_changes_nothing(any_device: vkq.Device, call: str) -> None:
    arena = make_arena(any_device)
    with work.failing(call), pytest.raises(vkq.OutOfMemoryError):
        arena.allocate(1)
    assert (arena.allocated_bytes, arena.used_bytes) == (0, 0)


def test_threads_share_an_arena(any_device: vkq.Device) -> None:
    arena = make_arena(any_device)
    wrong: list[str] = []

    def body(number: int) -> None:
        for i in range(300):
            one = arena.allocate(16 * (1 + (i * 7 + number) % 9))
            one.view()[:] = number
            if not (one.view() == number).all():
                wrong.append(f"thread {number}")

    threads = [threading.Thread(target=body, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert arena.used_bytes == 0


def test_a_steady_state_allocates_nothing_and_changing_sizes_do_not_grow(
    any_device: vkq.Device, allocations: None
) -> None:
    arena = make_arena(any_device, keep=8 * BLOCK)
    for i in range(2000):
        several = [arena.allocate(1 + (i * 37 + j * 101) % 900) for j in range(4)]
        del several
    assert work.counted() <= 5
    assert arena.allocated_bytes <= 5 * BLOCK


def test_device_memory_returns_when_tensors_die(device: vkq.Device) -> None:
    device.synchronize()
    before, limit = device.memory_used_bytes, 0
    for _ in range(12):  # each tensor is larger than a block
        tensor = vkq.Tensor(device, (5 << 20,), "int32")
        limit = max(limit, device.memory_used_bytes - before)
        del tensor
    assert device.memory_used_bytes == before
    assert limit < 21 << 20, "one of them at a time"
