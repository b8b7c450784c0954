"""The arena: ranges never overlap, are aligned, join again, and nothing is lost of what was handed out."""

import gc
import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vkq
from vkq.runtime.buffer import Arena, Buffer

BLOCK = 1024


class FakeMemory:
    """Host bytes in place of an allocation."""

    def __init__(self, size: int):
        self.bytes = size
        self.mapped = True
        self.data = np.zeros(size, np.uint8)

    def view(self, offset: int, bytes: int) -> npt.NDArray[np.uint8]:
        return self.data[offset : offset + bytes]


def make_arena(alignment: int = 64) -> tuple[Arena, list[int]]:
    made: list[int] = []

    def new(size: int) -> FakeMemory:
        made.append(size)
        return FakeMemory(size)

    return Arena(new, alignment, BLOCK), made


# Sizes around the alignment and the block; a negative number frees one of the buffers held.
STEPS = st.lists(
    st.one_of(
        st.integers(0, 200), st.sampled_from([63, 64, 65, 1023, 1024, 1025, 5000]), st.integers(-50, -1)
    )
)


@given(STEPS, st.sampled_from([1, 16, 64, 256]))
def test_ranges_are_disjoint_aligned_and_accounted_for(steps: list[int], alignment: int) -> None:
    arena, made = make_arena(alignment)
    held: list[Buffer] = []
    for step in steps:
        if step >= 0:
            held.append(arena.allocate(step))
            assert held[-1].bytes >= max(step, 1)
        elif held:
            held.pop(step % len(held))
        ranges = sorted((id(b.block), b.offset, b.offset + b.bytes) for b in held)
        for (block, _, end), (other, start, _) in itertools.pairwise(ranges):
            assert block != other or end <= start, "two buffers overlap"
        assert all(b.offset % max(alignment, 16) == 0 for b in held)
        assert all(b.offset + b.bytes <= b.block.memory.bytes for b in held)
        assert arena.used_bytes == sum(b.bytes for b in held)
        assert arena.allocated_bytes >= arena.used_bytes
    held.clear()
    assert arena.used_bytes == 0
    # Every free range has joined its neighbours: a whole block can be had without a new allocation.
    if any(size == BLOCK for size in made):
        count = len(made)
        whole = arena.allocate(BLOCK)
        assert (len(made), whole.offset) == (count, 0)
    arena.trim()


def test_freed_neighbours_join_in_any_order() -> None:
    for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):
        arena, made = make_arena()
        parts: dict[int, Buffer] = {i: arena.allocate(320) for i in range(3)}
        for i in order:
            del parts[i]
        assert arena.allocate(960).offset == 0, order
        assert made == [BLOCK]


def test_the_smallest_hole_that_fits_is_taken() -> None:
    arena, _ = make_arena()
    held = [arena.allocate(size) for size in (256, 64, 128, 64)]
    held[0] = held[2] = held[3]  # holes of 256 and 128, and the rest of the block
    gc.collect()
    assert arena.allocate(100).offset == 320


def test_a_large_buffer_has_a_block_of_its_own_that_goes_with_it() -> None:
    arena, made = make_arena()
    small, large = arena.allocate(10), arena.allocate(BLOCK + 1)
    assert made == [BLOCK, 1088]
    assert arena.allocated_bytes == BLOCK + 1088
    del large
    assert arena.allocated_bytes == BLOCK
    assert arena.allocate(BLOCK - 64).block is small.block


def test_trim_gives_unused_blocks_back_and_keeps_the_others() -> None:
    arena, _ = make_arena()
    first, second = arena.allocate(BLOCK), arena.allocate(BLOCK)
    assert arena.allocated_bytes == 2 * BLOCK
    del first
    assert arena.allocated_bytes == 2 * BLOCK, "a block of the usual size is kept for the next buffer"
    arena.trim()
    assert (arena.allocated_bytes, arena.used_bytes) == (BLOCK, BLOCK)
    del second


def test_a_failed_allocation_changes_nothing() -> None:
    def refuse(size: int) -> FakeMemory:
        raise vkq.OutOfMemoryError("none left")

    arena = Arena(refuse, 64, BLOCK)
    with pytest.raises(vkq.OutOfMemoryError):
        arena.allocate(1)
    assert (arena.allocated_bytes, arena.used_bytes) == (0, 0)


def test_device_memory_returns_when_tensors_die(device: vkq.Device) -> None:
    device.synchronize()
    before, limit = device.memory_used_bytes, 0
    for _ in range(12):  # each more than a block
        tensor = vkq.Tensor(device, (5 << 20,), "int32")
        limit = max(limit, device.memory_used_bytes - before)
        del tensor
    assert device.memory_used_bytes == before
    assert limit < 21 << 20, "one of them at a time"
