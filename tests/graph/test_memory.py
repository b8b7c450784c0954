"""Memory plans: nothing alive together overlaps, and little more than what must be alive is needed."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vkq
from vkq.graph.memory import Life, Plan, plan, verify

LIVES = st.lists(
    st.builds(
        lambda a, b, size: Life(min(a, b), max(a, b), size),
        st.integers(0, 20),
        st.integers(0, 20),
        st.integers(0, 99),
    ),
    max_size=25,
)


@given(lives=LIVES, alignment=st.sampled_from([1, 16, 256]))
def test_no_two_live_values_overlap(lives: list[Life], alignment: int) -> None:
    found = plan(lives, alignment)
    for (a, x), (b, y) in itertools.combinations(zip(lives, found.offsets, strict=True), 2):
        apart = x + a.size <= y or y + b.size <= x or not (a.size and b.size)
        assert apart or not a.meets(b)
    assert all(offset % alignment == 0 for offset in found.offsets)
    assert found.bound <= found.peak <= sum(-(-life.size // alignment) * alignment for life in lives)


def test_a_chain_needs_two_values() -> None:
    """Each step reads one value and writes the next: as a network without branches."""
    found = plan([Life(i, i + 1, 100) for i in range(50)])
    assert (found.peak, found.bound) == (200, 200)


@pytest.mark.parametrize(("offsets", "peak"), [((0, 4), 12), ((0, 8), 12), ((-4, 8), 16)])
def test_wrong_plans_are_found(offsets: tuple[int, int], peak: int) -> None:
    lives = [Life(0, 2, 8), Life(1, 3, 8)]
    verify(lives, Plan((0, 8), 16, 16))
    with pytest.raises(vkq.VkqError, match="memory plan"):
        verify(lives, Plan(offsets, peak, 16))
