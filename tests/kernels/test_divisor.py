"""Tests of divisions computed as a multiplication and a shift."""

import numpy as np
import pytest

from vkq.kernels.divisor import divisor


@pytest.mark.parametrize(
    "d", [1, 2, 3, 7, 28, 641, 65535, 65536, 65537, (1 << 30) - 1, 1 << 30, (1 << 31) - 1, 1 << 31]
)
def test_every_quotient(d: int) -> None:
    """Quotients by d equal NumPy's. The quotient changes at multiples of d, so the dividends are multiples of
    d and their neighbours, and the largest dividend."""
    rng, most = np.random.default_rng(8), (1 << 31) - 1
    multiples = d * np.concatenate([[0, 1, 2, most // d], rng.integers(0, most // d + 1, 2000)])
    n = np.concatenate([multiples + step for step in (-1, 0, 1)] + [[0, most]])
    n = n[(n >= 0) & (n <= most)].astype(np.uint64)
    by = divisor("d", d)
    assert 0 < by["d_multiplier"] < 1 << 32
    high = (n * np.uint64(by["d_multiplier"])) >> np.uint64(32)
    assert (high + n < 1 << 32).all()  # the shader's sum does not overflow
    np.testing.assert_array_equal((high + n) >> np.uint64(by["d_shift"]), n // np.uint64(d))
