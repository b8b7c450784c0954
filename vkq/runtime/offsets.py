"""Memory planning: offsets of arrays in one range of memory, from their lifetimes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ALIGNMENT = 256  # multiple of every device's `Capabilities.buffer_alignment`, at most 256 in Vulkan


@dataclass(frozen=True)
class Lifetime:
    """The size of an array in bytes, and the steps *first* to *last* (both included) that use it."""

    bytes: int
    first: int
    last: int


def place(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return the offset of each array, and the total bytes. Arrays are placed by size, the largest first,
    at the lowest offset that is free during their lifetime.

    >>> place([Lifetime(512, 0, 1), Lifetime(256, 1, 2), Lifetime(512, 2, 3)])
    ([0, 512, 0], 768)
    """
    offsets = [0] * len(lifetimes)
    placed = ArraysInUse(1 + max((one.last for one in lifetimes), default=0))
    for i in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].bytes):
        one, at = lifetimes[i], 0
        for j in sorted(placed.during(one.first, one.last), key=lambda j: (offsets[j], j)):
            if offsets[j] < at + aligned(one.bytes):
                at = max(at, offsets[j] + aligned(lifetimes[j].bytes))
        offsets[i] = at
        placed.add(i, one.first, one.last)
    return offsets, max((offsets[i] + aligned(one.bytes) for i, one in enumerate(lifetimes)), default=0)


class ArraysInUse:
    """The arrays in use at each step, as a segment tree over the steps: it finds the arrays in use during a
    range of steps without a scan of all arrays."""

    def __init__(self, steps: int):
        self._size = 1 << (steps - 1).bit_length()
        self._whole: dict[
            int, list[int]
        ] = {}  # {node: arrays in use at every step of the node, but not of its parent}
        self._some: dict[int, list[int]] = {}  # {node: arrays in `_whole` of the nodes below it}
        self.looked_at = 0

    def add(self, i: int, first: int, last: int) -> None:
        """Add array *i*, in use from step *first* to step *last*."""
        above: set[int] = set()
        for node in self._nodes(first, last):
            self._whole.setdefault(node, []).append(i)
            while (node := node // 2) and node not in above:
                above.add(node)
        for node in above:
            self._some.setdefault(node, []).append(i)

    def during(self, first: int, last: int) -> set[int]:
        """Return the arrays in use at any step from *first* to *last*."""
        found: set[int] = set()
        above: set[int] = set()
        for node in self._nodes(first, last):
            self._look(found, self._some.get(node, ()))
            while node and node not in above:
                above.add(node)
                self._look(found, self._whole.get(node, ()))
                node //= 2
        return found

    def _look(self, found: set[int], arrays: Sequence[int]) -> None:
        self.looked_at += len(arrays)
        found.update(arrays)

    def _nodes(self, first: int, last: int) -> Iterator[int]:
        """Yield the fewest nodes that together cover exactly the steps from *first* to *last*."""
        low, high = first + self._size, last + 1 + self._size
        while low < high:
            if low & 1:
                yield low
                low += 1
            if high & 1:
                high -= 1
                yield high
            low, high = low // 2, high // 2


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """Return the maximum bytes in use at one step, a lower bound of every placement."""
    changes: dict[int, int] = {}
    for one in lifetimes:
        changes[one.first] = changes.get(one.first, 0) + aligned(one.bytes)
        changes[one.last + 1] = changes.get(one.last + 1, 0) - aligned(one.bytes)
    return max(itertools.accumulate((changes[step] for step in sorted(changes)), initial=0))


def aligned(size: int) -> int:
    """Round a size up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT
