"""Device memory: the buffers and arenas of the extension."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError


class Buffer(Protocol):
    """A range of device memory (``vkq._kompute.Buffer``). It returns to its arena when no tensor and no
    pending recording refers to it."""

    @property
    def bytes(self) -> int: ...
    @property
    def offset(self) -> int:
        """The offset of the buffer in its block of memory, in bytes."""

    @property
    def block(self) -> int:
        """The number of the block of memory that holds the buffer."""

    @property
    def block_bytes(self) -> int: ...
    @property
    def mapped(self) -> bool:
        """True if the host can access the buffer's memory."""

    @property
    def failure(self) -> DeviceError | None:
        """The reason why the buffer's content was never computed, or None."""

    def check(self) -> None:
        """Raise an error if the submission that computes the content failed."""

    def view(self) -> npt.NDArray[np.uint8]:
        """Return the bytes themselves, if the host can access them."""


class Arena(Protocol):
    """Allocates aligned ranges of large blocks of memory (``vkq._kompute.Arena``). Thread-safe."""

    @property
    def allocated_bytes(self) -> int:
        """The bytes of the device's memory that the arena holds, used or free."""

    @property
    def used_bytes(self) -> int:
        """The allocated bytes."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes allocated at a time since `reset_peak`."""

    def allocate(self, size: int) -> Buffer:
        """Return a buffer of at least *size* bytes (never 0: Vulkan has no empty buffers)."""

    def reset_peak(self) -> None:
        """Restart the measurement of `peak_bytes` from the current allocation."""

    def trim(self) -> None:
        """Free every block without allocations."""
