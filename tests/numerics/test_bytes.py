"""Tests of 8-bit quantization by primitive float32 operations: results equal those of `quantize` in NumPy."""

import numpy as np
import pytest

from vkq import QParams
from vkq.numerics import bytes as steps
from vkq.numerics.quantize import dequantize, quantize
from vkq.numerics.steps import Computed
from vkq.numerics.stored import signed, signed_zero_point


def quantizer(q: QParams) -> steps.Quantizer:
    scale, reciprocal = Computed(np.float32(q.scale)), Computed(np.float32(steps.reciprocal(q)))
    return steps.Quantizer(scale, reciprocal, Computed(np.int32(signed_zero_point(q)), "i"), steps.divides(q))


@pytest.mark.parametrize(
    "q", [QParams(0.5, -3), QParams(0.0173, 200, "uint8"), QParams(2.0**-126), QParams(3e7, 5)]
)
def test_numbers(q: QParams) -> None:
    """A sequence of primitive float32 operations gives the results of `quantize` for ties and their
    neighbours, very large values, infinities, NaN and subnormal values."""
    ties = ((np.arange(-300, 300) + 0.5) * q.scale).astype(np.float32)
    near = [np.nextafter(ties, np.float32(to)) for to in (-np.inf, np.inf)]
    far = np.random.default_rng(1).normal(0, 200, 4000).astype(np.float32) * np.float32(q.scale)
    odd = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3e38, -3e38])
    x = np.concatenate([ties, *near, far, odd])
    flushed = np.where(np.abs(x) < 2.0**-126, np.float32(0), x)
    with np.errstate(all="ignore"):
        got = quantizer(q)(Computed(flushed))
    assert isinstance(got, Computed)
    np.testing.assert_array_equal(got.array, signed(quantize(flushed, q)).astype(np.int32))
    bytes_ = np.arange(256).astype(np.uint8).view(q.dtype)
    scale, zero = Computed(np.float32(q.scale)), Computed(np.int32(signed_zero_point(q)), "i")
    made = steps.dequantized(Computed(signed(bytes_).astype(np.int32), "i"), scale, zero)
    assert isinstance(made, Computed)
    np.testing.assert_array_equal(made.array, dequantize(bytes_, q))


def test_near_every_tie() -> None:
    """For any normal scale, values within three ulp of a tie or of an integer are rounded as NumPy rounds
    the quotient x / scale."""
    rng = np.random.default_rng(2)
    scales = np.ldexp(rng.integers(1 << 23, 1 << 24, 300), rng.integers(-149, 104, 300)).astype(np.float32)
    for scale in [*scales, np.float32(1), np.float32(2) - np.float32(2**-23), np.float32(2.0**100)]:
        q = QParams(float(scale), 3)
        with np.errstate(all="ignore"):
            x = (np.arange(-520, 521) / 2 * scale).astype(np.float32)
            x = (x[:, None] + np.arange(-3, 4, dtype=np.float32) * np.spacing(x)[:, None]).ravel()
            x = np.where(np.abs(x) < 2.0**-126, np.float32(0), x)
            got = quantizer(q)(Computed(x))
        assert isinstance(got, Computed)
        want = quantize(x, q).astype(np.int32)
        np.testing.assert_array_equal(got.array, want)
        if not steps.divides(q):
            check_quick(q, x, want)


def check_quick(q: QParams, x: np.ndarray, want: np.ndarray) -> None:
    """Check `Quantizer.quick`: its results are correct for all values that it marks as certain, and it marks
    all values near an integer as certain."""
    values = np.concatenate([x, np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38])])
    with np.errstate(all="ignore"):
        found, right = quantizer(q).quick(Computed(values))
    assert isinstance(found, Computed)
    assert isinstance(right, Computed)
    want = np.concatenate([want, quantize(values[x.size :], q).astype(np.int32)])
    np.testing.assert_array_equal(found.array[right.array], want[right.array])
    # values near integers, among the x of `test_near_every_tie`
    whole = np.arange(-520, 521).repeat(7) % 2 == 0
    assert right.array[: x.size][whole].all()
    assert not right.array[-5]
