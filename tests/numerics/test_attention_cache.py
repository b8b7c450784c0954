"""Tests of the quantization for int8 attention caches: the primitive operations, which shaders also run, give
the same numbers as the plain formula. Errors are at most half a quantization step and one rounding."""

from __future__ import annotations

import numpy as np
import pytest

from vkq.numerics.attention_cache import packed, unpacked, words_of


@pytest.mark.parametrize("width", [1, 5, 64, 130])
def test_the_plain_formula(width: int) -> None:
    """Codes and scales equal those of NumPy's float32 arithmetic, and every dequantized number is within
    its error bound."""
    r = np.random.default_rng(width)
    x = (r.normal(0, 1, (3000, width)) * np.exp(r.normal(0, 8, (3000, 1)))).astype(np.float32)
    x[0] = 0
    # the scale is (127 / 2) / 127 = 1/2, so the quotients of these odd multiples of 1/4 are ties
    x[1], x[1, 0] = np.resize(np.arange(-253, 254, 2) / 4, width), 127 / 2
    words = packed(x)
    assert (words.dtype, words.shape) == (np.int32, (3000, words_of(width)))
    codes, scale = unpacked(words, width)
    want = np.abs(x).max(-1) / np.float32(127)
    np.testing.assert_array_equal(scale, want)
    with np.errstate(invalid="ignore"):
        quotients = np.nan_to_num(x / want[:, None])
    np.testing.assert_array_equal(codes, np.rint(quotients))
    assert (words[:, :-1].view(np.int8)[:, width:] == 0).all()
    back = codes * scale[:, None]
    bound = (0.5 + 2.0**-16) * scale.astype(np.float64)[:, None]
    assert (np.abs(back.astype(np.float64) - x) <= bound).all()


def test_vectors_without_a_scale() -> None:
    """A NaN or an infinity in a vector makes its scale NaN; a scale too small for a normal number becomes
    0. All codes are then 0."""
    x = np.float32([[1, np.nan, 2], [np.inf, 0, 0], [0, -np.inf, 1], [1e-40, 0, 0], [2.0**-120, 0, 0]])
    assert (packed(x)[:, 0] == 0).all()
    assert packed(x)[:3, -1].tolist() == [0x7FC00000] * 3
    assert packed(x)[3:, -1].tolist() == [0] * 2
    assert packed(np.float32([[2.0**-119, 0]]))[0, -1] == np.float32(2.0**-119 / 127).view(np.int32)
