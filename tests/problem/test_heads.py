"""Tests of the conversion between concatenated heads and heads as separate matrices: shapes and arrays."""

import numpy as np

from vkq.problem.heads import apart, put_together, taken_apart, together


def test_there_and_back() -> None:
    x = np.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7)  # batch 2, three heads, five rows, seven elements
    beside = put_together(x, 3)
    assert beside.shape == together(x.shape, 3) == (2, 5, 21)
    assert apart(beside.shape, 3) == x.shape
    np.testing.assert_array_equal(beside[1, 4, 7:14], x[1, 1, 4])
    np.testing.assert_array_equal(taken_apart(beside, 3), x)


def test_one_head_is_any_array() -> None:
    x = np.arange(6).reshape(2, 3)
    assert taken_apart(x, 1) is put_together(x, 1) is x
    assert apart(x.shape, 1) == together(x.shape, 1) == (2, 3)
