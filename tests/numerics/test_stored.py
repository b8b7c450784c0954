"""Tests of the form in which 8-bit values are stored on a device: they still represent the same real
values."""

from __future__ import annotations

import numpy as np
import pytest

from vkq.numerics.qparams import QDType, QParams
from vkq.numerics.stored import owned, shift, signed, signed_zero_point


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("zero_point", [0, 5, 127])
def test_numbers_and_zero_point_move_alike(zero_point: int, dtype: QDType) -> None:
    q = QParams(1.0, zero_point, dtype)
    values = np.arange(q.qmin, q.qmax + 1).astype(dtype)
    stored = signed(values)
    assert stored.dtype == np.int8
    centred = stored.astype(np.int32) - signed_zero_point(q)
    np.testing.assert_array_equal(centred, values.astype(np.int32) - zero_point)
    np.testing.assert_array_equal(stored.astype(np.int32) + shift(dtype), values)


def test_a_zero_point_found_at_run_time_counts_as_zero() -> None:
    assert signed_zero_point(None) == 0


def test_what_somebody_can_write_to_is_copied() -> None:
    """A writable array is copied. So is a read-only view if its base array is writable."""
    mine = np.arange(6, dtype=np.int8)
    shown = mine.reshape(2, 3)
    shown.flags.writeable = False
    over = np.broadcast_to(mine, (2, 6))
    lent = np.frombuffer(memoryview(bytearray(b"abc")).toreadonly(), np.uint8)
    for values in (mine, shown, shown[1], over, lent):
        kept, want = owned(values), values.tolist()
        assert not np.shares_memory(kept, values)
        assert not kept.flags.writeable
        assert kept.tolist() == want
    for values in (owned(mine), owned(mine)[2:], np.frombuffer(b"abc", np.uint8)):
        assert owned(values) is values
