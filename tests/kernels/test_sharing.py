"""Tests of the number of invocations that share a row, on devices of several kinds."""

from __future__ import annotations

import pytest

from tests.device.reported import reported
from vkq.device.profiles import profile
from vkq.kernels import sharing


def test_many_numbers_are_shared_and_few_are_not() -> None:
    assert [sharing.sharers(n) for n in (1, 255, 256, 50_000)] == [1, 1, 64, 64]
    assert [sharing.sharers(n, long=16) for n in (15, 16)] == [1, 64]


@pytest.mark.parametrize("name", ["adreno-650", "nvidia-h200"])
def test_a_gpu_reads_32_bytes_together(name: str) -> None:
    """Neighbouring invocations of a GPU read 32 bytes together. If there are few rows, more invocations
    share a row, but at most one for each two words."""
    c = reported(name)
    busy = profile(c).busy_workgroups * sharing.SHARERS
    assert sharing.sharers_of_rows(c, rows=10 * busy, words=128) == 8
    assert sharing.sharers_of_rows(c, rows=busy // 16, words=128) == 16
    assert sharing.sharers_of_rows(c, rows=1, words=128) == 64
    assert sharing.sharers_of_rows(c, rows=1, words=5) == 2
    assert sharing.sharers_of_rows(c, rows=10 * busy, words=9) == 4


def test_a_cpu_shares_rows_only_where_it_would_idle() -> None:
    c = reported("lavapipe")
    busy = profile(c).busy_workgroups * sharing.SHARERS
    assert sharing.sharers_of_rows(c, rows=busy, words=128) == 1
    assert sharing.sharers_of_rows(c, rows=busy // 2, words=128) == 2
    assert sharing.sharers_of_rows(c, rows=1, words=3) == 1
