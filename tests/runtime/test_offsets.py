"""Offsets: nothing in use together overlaps, and little more is taken than what must be in use."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from vkq.runtime.offsets import ALIGNMENT, Lifetime, aligned, lower_bound, place

STEPS = st.integers(0, 20)
LIVES = st.lists(
    st.builds(lambda a, b, size: Lifetime(size, min(a, b), max(a, b)), STEPS, STEPS, st.integers(0, 2000)),
    max_size=25,
)


@given(lives=LIVES)
def test_nothing_in_use_together_overlaps(lives: list[Lifetime]) -> None:
    offsets, total = place(lives)
    for (a, x), (b, y) in itertools.combinations(zip(lives, offsets, strict=True), 2):
        together = a.first <= b.last and b.first <= a.last
        assert not together or x + a.bytes <= y or y + b.bytes <= x or not (a.bytes and b.bytes)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    assert all(offset + life.bytes <= total for life, offset in zip(lives, offsets, strict=True))
    assert lower_bound(lives) <= total <= sum(aligned(life.bytes) for life in lives)


def test_a_chain_needs_two() -> None:
    """Each step reads one array and writes the next, as a network without branches."""
    lives = [Lifetime(1024, i, i + 1) for i in range(50)]
    assert place(lives)[1] == lower_bound(lives) == 2048
