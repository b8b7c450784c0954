"""Tests of template matching: integer measures are exact, the normalized measure is computed from exact
sums, and both agree with the definitions of other libraries."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import skimage.data
import skimage.feature

import vkq
from vkq import integer


def windows(image: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Return the windows as an int64 array (OH, OW, pixels of a window in all channels)."""
    stack = image if image.ndim == 3 else image[None]
    view = np.lib.stride_tricks.sliding_window_view(stack.astype(np.int64), size[-2:], axis=(1, 2))
    return np.moveaxis(view, 0, 2).reshape(*view.shape[1:3], -1)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_integer_measures(device: vkq.Device, dtype: str) -> None:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    image = rng.integers(info.min, info.max, (3, 20, 31), dtype, endpoint=True)
    templates = rng.integers(info.min, info.max, (4, 3, 7, 9), dtype, endpoint=True)
    templates[0], templates[1] = image[:, 5:12, 8:17], info.min
    w, t = windows(image, (7, 9)), templates.reshape(4, 1, 1, -1).astype(np.int64)
    np.testing.assert_array_equal(
        integer.match_template(image, templates, device=device), (w * t).sum(axis=-1)
    )
    difference = integer.match_template(image, templates, "ssd", device=device)
    np.testing.assert_array_equal(difference, ((w - t) ** 2).sum(axis=-1))
    assert np.argwhere(difference[0] == 0).tolist() == [[5, 8]]


def test_normalized_is_scikit_images(device: vkq.Device) -> None:
    image = skimage.data.coins()[:120, :150]
    templates = np.stack([image[10:41, 20:55], image[70:101, 100:135] // 2 + 30])
    got = integer.match_template(image, templates, "ccoeff_normed", device=device)
    for one, template in zip(got, templates, strict=True):
        # scikit-image computes in floating point with an FFT, so its results are not exact.
        np.testing.assert_allclose(one, skimage.feature.match_template(image, template), atol=1e-6)
        single = integer.match_template(image, template, "ccoeff_normed", device=device)
        np.testing.assert_array_equal(single, one)
    assert np.unravel_index(got[0].argmax(), got[0].shape) == (10, 20)
    assert got[0].max() == pytest.approx(1, abs=1e-15)
    assert np.unravel_index(got[1].argmax(), got[1].shape) == (70, 100)


def test_normalized_where_float_sums_cancel(device: vkq.Device) -> None:
    """Normalized matching equals exact fractions for a texture of variance 1 on a bright 16-bit background,
    where float sums would cancel."""
    rng = np.random.default_rng(2)
    image = (65000 + rng.integers(-1, 2, (24, 25))).astype(np.uint16)
    template = image[3:15, 4:17]
    got = integer.match_template(image, template, "ccoeff_normed", device=device)
    flat = windows(image, template.shape)
    n = template.size
    for i, j in [(0, 0), (3, 4), (7, 2), (12, 12)]:
        a, b = [Fraction(int(v)) for v in flat[i, j]], [Fraction(int(v)) for v in template.ravel()]
        mean_a, mean_b = sum(a) / n, sum(b) / n
        cov = sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True))
        spread = sum((p - mean_a) ** 2 for p in a) * sum((q - mean_b) ** 2 for q in b)
        assert got[i, j] == pytest.approx(float(cov) / float(spread) ** 0.5, rel=1e-13)


def test_constant_windows(device: vkq.Device) -> None:
    image = np.full((9, 9), 200, np.uint8)
    image[:4, :4] = np.arange(16).reshape(4, 4)
    template = np.arange(9, dtype=np.uint8).reshape(3, 3)
    got = integer.match_template(
        image, np.stack([template, np.full((3, 3), 7, np.uint8)]), "ccoeff_normed", device=device
    )
    assert np.isfinite(got).all()
    assert got[0, 5, 5] == 0  # windows of equal pixels score 0
    assert not got[1].any()  # a template of equal pixels scores 0 everywhere
    assert np.abs(got).max() <= 1


def test_refusals(any_device: vkq.Device) -> None:
    image = np.zeros((8, 8), np.int32)
    with pytest.raises(vkq.ArgumentError, match="method is 'sqdiff'"):
        integer.match_template(image, image, "sqdiff", device=any_device)  # type: ignore[arg-type]
    with pytest.raises(vkq.ArgumentError, match=r"image \(8, 8\), templates \(1, 1, 2, 2\)"):
        integer.match_template(image, image[None, None, :2, :2], device=any_device)
    with pytest.raises(vkq.ArgumentError, match="the image is 8 x 8 and the templates 9 x 2; they must fit"):
        integer.match_template(image, np.zeros((9, 2), np.int32), device=any_device)
    image[0, 0] = 2**31 - 1
    with pytest.raises(vkq.AccumulatorOverflowError, match="4 squares of numbers up to 2147483647"):
        integer.match_template(image, image[:2, :2], "ssd", device=any_device)


def test_channels_last_are_told_apart(any_device: vkq.Device) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    for templates in (picture[4:9, 6:13], picture[None, 4:9, 6:13]):
        with pytest.raises(vkq.ArgumentError, match=r"have their channels last.*transpose\(2, 0, 1\)"):
            vkq.integer.match_template(picture, templates, device=any_device)
    first = picture.transpose(2, 0, 1)
    found = vkq.integer.match_template(first, first[:, 4:9, 6:13], "ssd", device=any_device)
    assert np.argwhere(found == 0).tolist() == [[4, 6]]
