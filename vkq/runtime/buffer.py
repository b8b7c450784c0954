"""Device memory: an arena hands out ranges of a few large allocations, and takes them back when their
``Buffer`` is dropped."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError


class Memory(Protocol):
    """One Vulkan allocation with a buffer over all of it (``vkq._kompute.Memory``)."""

    @property
    def bytes(self) -> int: ...
    @property
    def mapped(self) -> bool: ...
    def view(self, offset: int, bytes: int) -> npt.NDArray[np.uint8]: ...


class Buffer:
    """A range of device memory; returned to its arena when nothing refers to it any more."""

    __slots__ = ("__weakref__", "_arena", "block", "bytes", "failure", "offset")

    def __init__(self, arena: Arena, block: Block, offset: int, size: int):
        self._arena = arena
        self.block = block
        self.offset = offset
        self.bytes = size
        self.failure: DeviceError | None = None  # why what it should hold was never computed

    def check(self) -> None:
        """Raises where the content is not there because the submission that computes it failed."""
        if self.failure is not None:
            f = self.failure
            raise type(f)(
                f"this tensor was never computed, because its submission failed ({f}); compute it again",
                f.result,
                f.call,
            )

    def binding(self) -> tuple[Memory, int, int]:
        """(memory, offset, bytes), as the extension takes it."""
        return self.block.memory, self.offset, self.bytes

    def view(self) -> npt.NDArray[np.uint8]:
        """The bytes themselves, where the memory is visible to the host."""
        return self.block.memory.view(self.offset, self.bytes)

    @property
    def mapped(self) -> bool:
        return self.block.memory.mapped

    def __del__(self) -> None:
        # May run in the middle of anything, the arena's own methods included: only an append, which is
        # atomic.
        self._arena.returned.append((self.block, self.offset, self.bytes))


class Slice:
    """A range of a buffer, with a buffer's face: scratch memory that a plan divides."""

    __slots__ = ("_whole", "block", "bytes", "offset")

    failure = None  # what lies in scratch memory is written before it is read, in the same submission

    def __init__(self, whole: Buffer, offset: int, size: int):
        self._whole = whole  # kept while the range is in use
        self.block = whole.block
        self.offset = whole.offset + offset
        self.bytes = size

    def check(self) -> None:
        """Nothing can be wrong with it."""

    def binding(self) -> tuple[Memory, int, int]:
        """(memory, offset, bytes), as the extension takes it."""
        return self.block.memory, self.offset, self.bytes


class Block:
    """One allocation and its free ranges, sorted by offset and never adjacent."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self.free: list[tuple[int, int]] = [(0, memory.bytes)]

    @property
    def empty(self) -> bool:
        return self.free == [(0, self.memory.bytes)]

    def take(self, size: int) -> int | None:
        """The offset of the smallest free range that holds *size*, now taken; None where there is none."""
        fits = [(length, offset) for offset, length in self.free if length >= size]
        if not fits:
            return None
        length, offset = min(fits)
        at = self.free.index((offset, length))
        self.free[at : at + 1] = [(offset + size, length - size)] if length > size else []
        return offset

    def give(self, offset: int, size: int) -> None:
        """Frees a range and joins it with its free neighbours."""
        self.free.append((offset, size))
        self.free.sort()
        joined = [self.free[0]]
        for start, length in self.free[1:]:
            last, last_length = joined[-1]
            if last + last_length == start:
                joined[-1] = (last, last_length + length)
            else:
                joined.append((start, length))
        self.free = joined


class Arena:
    """Hands out aligned ranges of blocks of *block_bytes*; a larger request gets a block of its own, given
    back when unused.

    *new_block* makes an allocation of at least so many bytes. *largest* is the most that may be asked for at
    once, and *rule* the reason in words; the caller checks it. Thread-safe.
    """

    def __init__(
        self,
        new_block: Callable[[int], Memory],
        alignment: int,
        block_bytes: int,
        largest: int = 1 << 62,
        rule: str = "",
    ):
        self.largest = largest
        self.rule = rule
        self._new_block = new_block
        self._alignment = max(alignment, 16)  # vkq's widest element is a vector of four words
        self._block_bytes = block_bytes
        self._blocks: list[Block] = []
        self._lock = threading.Lock()
        self._used = 0
        self._peak = 0
        self.returned: deque[tuple[Block, int, int]] = deque()

    def allocate(self, size: int) -> Buffer:
        """A buffer of at least *size* bytes (never 0: Vulkan has no empty buffers)."""
        size = -(-max(size, 1) // self._alignment) * self._alignment
        with self._lock:
            self._collect()
            block, offset = self._take(size)
            self._used += size
            self._peak = max(self._peak, self._used)
            return Buffer(self, block, offset, size)

    def _take(self, size: int) -> tuple[Block, int]:
        for block in self._blocks:
            offset = block.take(size)
            if offset is not None:
                return block, offset
        block = Block(self._new_block(min(max(size, self._block_bytes), max(self.largest, size))))
        self._blocks.append(block)
        offset = block.take(size)
        if offset is None:
            raise RuntimeError(f"a block of {block.memory.bytes} bytes is smaller than the {size} asked for")
        return block, offset

    @property
    def allocated_bytes(self) -> int:
        """What the arena holds of the device's memory, used or free."""
        with self._lock:
            self._collect()
            return sum(block.memory.bytes for block in self._blocks)

    @property
    def used_bytes(self) -> int:
        """What is handed out."""
        with self._lock:
            self._collect()
            return self._used

    @property
    def peak_bytes(self) -> int:
        """The most that was handed out at a time since `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """Begins a new measurement of `peak_bytes` with what is handed out now."""
        with self._lock:
            self._collect()
            self._peak = self._used

    def trim(self) -> None:
        """Gives every block back of which nothing is handed out."""
        with self._lock:
            self._collect()
            self._blocks = [block for block in self._blocks if not block.empty]

    def _collect(self) -> None:
        while self.returned:
            block, offset, size = self.returned.popleft()
            block.give(offset, size)
            self._used -= size
            if block.empty and block in self._blocks and block.memory.bytes > self._block_bytes:
                self._blocks.remove(block)
