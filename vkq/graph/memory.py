"""A memory plan: where each value of a recording lies in one range of memory, so that values which are never
alive together share it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from ..errors import VkqError


@dataclasses.dataclass(frozen=True)
class Life:
    """A value that is written by step ``first`` and read until step ``last`` (both counted in), of so many
    bytes."""

    first: int
    last: int
    size: int

    def meets(self, other: Life) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclasses.dataclass(frozen=True)
class Plan:
    """An offset for each life, the bytes that they need together, and the least that any plan could need."""

    offsets: tuple[int, ...]
    peak: int
    bound: int


def plan(lives: Sequence[Life], alignment: int = 1) -> Plan:
    """Greedy by size: the largest first, each at the lowest offset where nothing that is alive at the same
    time lies.

    >>> plan([Life(0, 1, 8), Life(1, 2, 4), Life(2, 3, 8)]).offsets
    (0, 8, 0)
    """
    sizes = [-(-life.size // alignment) * alignment for life in lives]
    offsets = [0] * len(lives)
    placed: list[int] = []
    for i in sorted(range(len(lives)), key=lambda i: (-sizes[i], lives[i].first)):
        taken = sorted((offsets[j], offsets[j] + sizes[j]) for j in placed if lives[i].meets(lives[j]))
        at = 0
        for begin, end in taken:
            if begin - at >= sizes[i]:
                break
            at = max(at, end)
        offsets[i] = at
        placed.append(i)
    peak = max((offsets[i] + sizes[i] for i in range(len(lives))), default=0)
    found = Plan(tuple(offsets), peak, lower_bound(lives, sizes))
    verify(lives, found)
    return found


def lower_bound(lives: Sequence[Life], sizes: Sequence[int]) -> int:
    """The most bytes that are alive at one step."""
    steps = {life.first for life in lives}
    return max(
        (
            sum(size for life, size in zip(lives, sizes, strict=True) if life.first <= step <= life.last)
            for step in steps
        ),
        default=0,
    )


def verify(lives: Sequence[Life], found: Plan) -> None:
    """Raises where two values that are alive together overlap, or one lies beyond the peak: independent of
    how the offsets were found."""
    events = sorted({life.first for life in lives})
    for step in events:
        alive = sorted(
            (offset, offset + life.size)
            for life, offset in zip(lives, found.offsets, strict=True)
            if life.first <= step <= life.last and life.size
        )
        for (begin, end), (after, _) in itertools.pairwise(alive):
            if after < end:
                raise VkqError(f"memory plan: at step {step} [{begin}, {end}) and {after} overlap")
        if alive and (alive[-1][1] > found.peak or alive[0][0] < 0):
            raise VkqError(f"memory plan: at step {step} a value ends at {alive[-1][1]}, beyond {found.peak}")
