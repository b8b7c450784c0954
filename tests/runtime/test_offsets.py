"""Tests of memory planning: arrays in use at the same time do not overlap, and the total is close to the
minimum."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkq.runtime import offsets
from vkq.runtime.offsets import ALIGNMENT, Lifetime, aligned, lower_bound, place

STEPS = st.integers(0, 20)
LIVES = st.lists(
    st.builds(lambda a, b, size: Lifetime(size, min(a, b), max(a, b)), STEPS, STEPS, st.integers(0, 2000)),
    max_size=25,
)


@given(lives=LIVES)
def test_nothing_in_use_together_overlaps(lives: list[Lifetime]) -> None:
    places, total = place(lives)
    for (a, x), (b, y) in itertools.combinations(zip(lives, places, strict=True), 2):
        together = a.first <= b.last and b.first <= a.last
        assert not together or x + a.bytes <= y or y + b.bytes <= x or not (a.bytes and b.bytes)
    assert all(offset % ALIGNMENT == 0 for offset in places)
    assert all(offset + life.bytes <= total for life, offset in zip(lives, places, strict=True))
    assert lower_bound(lives) <= total <= sum(aligned(life.bytes) for life in lives)


def test_a_chain_needs_two() -> None:
    """A sequence of steps, each of which reads one array and writes the next, needs memory for two
    arrays."""
    lives = [Lifetime(1024, i, i + 1) for i in range(50)]
    assert place(lives)[1] == lower_bound(lives) == 2048


def test_looks_at_neighbours_in_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning compares only arrays whose lifetimes overlap. For a sequence of steps and one array that
    lives through all of them, 8 times as many steps need at most 12 times as many comparisons."""
    made: list[offsets.ArraysInUse] = []

    class Counted(offsets.ArraysInUse):
        def __init__(self, steps: int):
            super().__init__(steps)
            made.append(self)

    monkeypatch.setattr(offsets, "ArraysInUse", Counted)
    for n in (500, 4000):
        lives = [Lifetime(1024, i, i + 1) for i in range(n)]
        assert place([*lives, Lifetime(512, 0, n)])[1] == 2048 + 512
    few, many = (one.looked_at for one in made)
    assert few > 0
    assert many < 8 * few * 1.5
