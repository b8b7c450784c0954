"""Device memory: what the extension's arenas hand out."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError


class Buffer(Protocol):
    """A range of device memory (``vkq._kompute.Buffer``); returned to its arena when nothing refers to it any
    more: no tensor, and no recording that is still to run."""

    @property
    def bytes(self) -> int: ...
    @property
    def offset(self) -> int:
        """In its block of memory."""

    @property
    def block(self) -> int:
        """Which block of memory it lies in, as a number."""

    @property
    def block_bytes(self) -> int: ...
    @property
    def mapped(self) -> bool:
        """Whether the host sees it."""

    @property
    def failure(self) -> DeviceError | None:
        """Why what it should hold was never computed."""

    def check(self) -> None:
        """Raises where the content is not there because the submission that computes it failed."""

    def view(self) -> npt.NDArray[np.uint8]:
        """The bytes themselves, where the host sees them."""


class Arena(Protocol):
    """Hands out aligned ranges of large blocks of memory (``vkq._kompute.Arena``). Thread-safe."""

    @property
    def allocated_bytes(self) -> int:
        """What it holds of the device's memory, used or free."""

    @property
    def used_bytes(self) -> int:
        """What is handed out."""

    @property
    def peak_bytes(self) -> int:
        """The most that was handed out at a time since `reset_peak`."""

    def allocate(self, size: int) -> Buffer:
        """A buffer of at least *size* bytes (never 0: Vulkan has no empty buffers)."""

    def reset_peak(self) -> None:
        """Begins a new measurement of `peak_bytes` with what is handed out now."""

    def trim(self) -> None:
        """Gives every block back of which nothing is handed out."""
