"""Where arrays that live for a while lie in one piece of memory: lifetimes to offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 256  # at least `Capabilities.buffer_alignment` of every device (Vulkan allows at most 256)


@dataclass(frozen=True)
class Lifetime:
    """An array of so many bytes, in use from step *first* to step *last*, both included."""

    bytes: int
    first: int
    last: int


def place(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """(offset of each, bytes in all): the largest first, each at the lowest place that is free for its life.

    >>> place([Lifetime(512, 0, 1), Lifetime(256, 1, 2), Lifetime(512, 2, 3)])
    ([0, 512, 0], 768)
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].bytes):
        one, at = lifetimes[i], 0
        for j in sorted(placed, key=lambda j: offsets[j]):
            other = lifetimes[j]
            if other.first <= one.last and one.first <= other.last and offsets[j] < at + aligned(one.bytes):
                at = max(at, offsets[j] + aligned(other.bytes))
        offsets[i] = at
        placed.append(i)
    return offsets, max((offsets[i] + aligned(lifetimes[i].bytes) for i in placed), default=0)


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """The most bytes that are in use at one step: no placement takes less."""
    steps = {one.first for one in lifetimes}
    return max(
        (sum(aligned(one.bytes) for one in lifetimes if one.first <= s <= one.last) for s in steps), default=0
    )


def aligned(size: int) -> int:
    """The size rounded up to whole units of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT
