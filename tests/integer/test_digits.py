"""Tests of splitting values into digits: every value can be computed from its digits, the number of digits is
minimal, and 0 can always be represented."""

import numpy as np
import pytest

from vkq.integer.digits import digits_for

RANGES = [  # (lowest value, highest value, number of digits)
    (0, 0, 1),
    (-128, 127, 1),
    (0, 255, 1),
    (-255, 0, 1),
    (5, 9, 1),  # the range must include 0
    (0, 256, 2),
    (-200, 200, 2),
    (-32768, 32767, 2),  # two balanced digits need an offset for this range
    (-32896, 32639, 2),  # exactly the range of two balanced digits
    (0, 65535, 2),
    (-32768, 32768, 3),
    (0, 2**24 - 1, 3),
    (-(2**31), 2**31 - 1, 4),
]


@pytest.mark.parametrize(("low", "high", "count"), RANGES)
def test_round_trip(low: int, high: int, count: int) -> None:
    digits = digits_for(low, high)
    assert digits.count == count
    rng = np.random.default_rng(low % 1000 + high % 1000)
    values = np.concatenate([[low, high, 0], rng.integers(min(low, 0), max(high, 0) + 1, 1000)])
    written = digits.of(values.astype(np.int32))
    assert written.dtype == np.int8
    assert written.shape == (count, values.size)
    weights = 256 ** np.arange(count, dtype=np.int64)
    np.testing.assert_array_equal(digits.offset + weights @ written.astype(np.int64), values)
    assert digits.offset + int(weights @ np.array(digits.of_zero())) == 0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_dtypes(dtype: str) -> None:
    info = np.iinfo(dtype)
    values = np.array([[info.min, info.max, 0], [1, info.max // 3, info.max // 2]], dtype)
    digits = digits_for(int(values.min()), int(values.max()))
    assert digits.count == info.bits // 8
    back = digits.offset + sum(256**i * d.astype(np.int64) for i, d in enumerate(digits.of(values)))
    np.testing.assert_array_equal(back, values)


def test_sixteen_bits() -> None:
    values = np.array([0, 1, 32767, 32768, 65535], np.uint16)
    digits = digits_for(0, 65535, bits=16)
    assert (digits.count, digits.offset) == (1, 32768)
    np.testing.assert_array_equal(digits.of(values)[0].astype(np.int64) + digits.offset, values)
    assert digits.of_zero() == [-32768]


def test_no_offset_without_need() -> None:
    """A range that fits into digits without an offset gets none, because an offset of w would require sums
    over windows."""
    assert digits_for(-128, 127).offset == digits_for(0, 127).offset == digits_for(-300, 30000).offset == 0
