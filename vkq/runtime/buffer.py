"""Device memory: the types of the buffers and arenas of the native module."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError


class Buffer(Protocol):
    """A range of device memory (``vkq._kompute.Buffer``). It returns to its arena when no tensor and no
    pending recording uses it."""

    @property
    def bytes(self) -> int: ...
    @property
    def offset(self) -> int:
        """The offset of the buffer in its memory block, in bytes."""

    @property
    def block(self) -> int:
        """The number of the buffer's memory block."""

    @property
    def block_bytes(self) -> int: ...
    @property
    def mapped(self) -> bool:
        """True if the host can access the buffer's memory."""

    @property
    def failure(self) -> DeviceError | None:
        """The error of the submission that computes the content, or None if it did not fail."""

    def check(self) -> None:
        """Raise the error of the submission that computes the content, if it failed."""

    def view(self) -> npt.NDArray[np.uint8]:
        """Return the bytes as an array that shares the buffer's memory, which must be `mapped`."""


class Arena(Protocol):
    """An allocator of aligned ranges in large memory blocks (``vkq._kompute.Arena``). Thread-safe."""

    @property
    def allocated_bytes(self) -> int:
        """The bytes of device memory in the arena's blocks, used or free."""

    @property
    def used_bytes(self) -> int:
        """The bytes in use by buffers."""

    @property
    def peak_bytes(self) -> int:
        """The maximum bytes in use at once since `reset_peak`."""

    def allocate(self, size: int) -> Buffer:
        """Return a buffer of at least *size* bytes (never 0: Vulkan has no empty buffers)."""

    def reset_peak(self) -> None:
        """Set `peak_bytes` to the bytes in use now."""

    def trim(self) -> None:
        """Free every memory block in which no buffer is allocated."""
