"""Tests of exact correlations on (emulated) matrix units: every tile and form, split reductions, window sums,
and 16-bit numbers, which are split into two 8-bit digits."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import vkq
from tests.kernels.emulated import capabilities, emulate
from vkq.check import integer as check_integer
from vkq.device.profiles import profile
from vkq.integer import correlation as op
from vkq.integer import matrix
from vkq.integer.chunks import numbers as result
from vkq.integer.images import Images, words
from vkq.problem.conv2d import Conv2dProblem
from vkq.reference import integer as reference
from vkq.runtime.tensor import Tensor
from vkq.shader.catalog import catalog

SEEDS = int(os.environ.get("VKQ_INTEGER_SEEDS", "2"))  # number of random cases; each takes seconds to compile
# tile -> (dtype of x, dtype of w, shape of x, shape of w, options); comments give the purpose of a case. The
# reduction of each case is split.
CASES: dict[str, tuple[str, str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "16x8x128": (
        "int8",
        "int8",
        (1, 1, 22, 30),
        (130, 1, 9, 17),
        {},
    ),  # more positions and templates than a tile has rows and columns
    "16x8x64": (
        "int16",
        "int16",
        (1, 2, 12, 19),
        (3, 2, 5, 18),
        {"padding": 2},
    ),  # two digits times two digits, 64-bit sums, window sums
    "16x8x32": ("uint8", "uint8", (2, 4, 11, 12), (6, 2, 4, 7), {"groups": 2, "padding": 3}),
    "16x16x64": ("uint8", "int8", (1, 1, 21, 40), (5, 1, 7, 9), {"stride": (1, 2), "dilation": (2, 1)}),
    # a row of the template has two blocks of words
    "16x16x32": ("int8", "uint8", (1, 1, 9, 150), (2, 1, 6, 130), {"padding": (1, 0)}),
}


def numbers(seed: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return values from the whole range of the dtype, with many extremes."""
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    found = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.where(rng.random(shape) < 0.2, rng.choice([info.min, info.max], shape), found).astype(dtype)


@pytest.mark.parametrize("form", ["s8s8", "u8u8"])
@pytest.mark.parametrize("tile", CASES)
def test_tiles(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, tile: str, form: str) -> None:
    x_dtype, w_dtype, x_shape, w_shape, options = CASES[tile]
    emulate(strict_device, monkeypatch, "16x8x32" if form == "s8s8" else "16x16x16", form=form)
    p = Conv2dProblem.of(x_shape, w_shape, **options)
    x, w = numbers(1, x_dtype, x_shape), numbers(2, w_dtype, w_shape)
    bias = np.arange(p.oc) * 1000 - 7
    sums = op.Sums.of((int(x.min()), int(x.max())), w, x_dtype == "int16")
    owner = op.Correlation(strict_device, "coopmat", p, w, bias, sums)
    kernel, (rows, columns) = owner.matrix(), op.axes(p)
    shape = owner.shape(p.n, rows, columns)
    able = [
        t
        for t in matrix.tilings(shape, kernel.how, strict_device.capabilities)
        if t.variant.axes["tile"] == tile
    ]
    parts = 12 if tile == "16x16x32" else 3  # a kernel loads sums of 3 parts at once, but not of 12
    kernel.tiling = max(able, key=lambda t: (t.splits == parts, t.splits > 1, t.rows < shape.kh, -t.splits))
    assert kernel.tiling.splits == parts
    got = result(
        owner.run(Tensor.from_numpy(words(x), strict_device), Images.of_array(x), rows, columns), sums.wide
    )
    np.testing.assert_array_equal(got, reference.conv2d(x, w, bias, p))


def test_every_variant_is_tested() -> None:
    variants = catalog().shaders[matrix.SHADER].variants
    assert {variant.axes["tile"] for variant in variants} == set(CASES)
    assert {variant.axes["dot"] for variant in variants} == {"s8s8", "u8u8"}


def test_chosen(any_device: vkq.Device) -> None:
    """Large windows use matrix units; if there are few positions, the reduction is split. 3x3 windows of
    one channel do not use matrix units, because most columns would be padding."""
    c = capabilities(any_device)
    how = matrix.arithmetic((0, 255), (-128, 127), False, c)
    assert (how.form, how.w_offset) == ("s8s8", 0)
    # this device has no u8u8 matrices, so w needs an offset
    assert matrix.arithmetic((0, 255), (0, 255), False, c).w_offset != 0
    for x_shape, w_shape, better in (
        ((1, 1, 160, 160), (30, 1, 100, 100), True),
        ((1, 1, 100, 100), (500, 1, 50, 50), True),
        ((1, 1, 200, 200), (2, 1, 3, 3), False),
    ):
        p = Conv2dProblem.of(x_shape, w_shape)
        owner = op.Correlation(
            any_device,
            "dot",
            p,
            np.ones(w_shape, np.int8),
            np.zeros(p.oc, np.int64),
            op.Sums.of((0, 255), np.ones(w_shape, np.int8), False),
        )
        s = owner.shape(1, *op.axes(p))
        known = profile(c)
        best = min(matrix.cost(t, s, how, known) for t in matrix.tilings(s, how, c))
        assert (best * known.multiprocessors * known.integer_costs["tiles"] < owner.tiles().cost(s)) == better


@pytest.mark.parametrize("form", ["s8s8", "u8u8"])
def test_sums_of_a_part_fit_int32(any_device: vkq.Device, form: str) -> None:
    """The sums of a part fit int32 for windows of any size, even if every product is 255 * 255 or 128 *
    128."""
    c = capabilities(any_device, form=form)
    how = matrix.arithmetic((0, 255), (0, 255), True, c)
    p = Conv2dProblem.of((1, 3, 400, 400), (1, 3, 300, 300))
    owner = op.Correlation(
        any_device,
        "dot",
        p,
        np.ones((1, 3, 300, 300), np.int8),
        np.zeros(1, np.int64),
        op.Sums.of((0, 1), np.ones((1, 3, 300, 300), np.int8), True),
    )
    s = owner.shape(1, *op.axes(p))
    largest = 255 * 255 if form == "u8u8" else 128 * 128
    found = list(matrix.tilings(s, how, c))
    assert found
    for t in found:
        assert t.chunks_per_part * t.rows * t.words * matrix.RUN * largest < 2**31
        assert t.splits * t.chunks_per_part >= t.chunks >= 3 * -(-300 // t.rows)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Random cases are exact. They vary channels, images, groups, strides and dilations, and include windows
    that extend past the image and the extremes of every dtype."""
    emulate(strict_device, monkeypatch, form=("s8s8", "u8u8")[seed % 2])
    assert check_integer.check(strict_device, seed, "coopmat") is None


def test_auto_takes_them(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(device, monkeypatch, form="u8u8")
    x, w = numbers(3, "uint8", (1, 1, 56, 60)), numbers(4, "uint8", (40, 1, 24, 32))
    said = vkq.integer.explain(x, w, device=device)
    assert "matrices of 16x8x32 u8u8" in said
    assert "million by coopmat" in said
    got = vkq.integer.conv2d(x, w, accumulate="auto", device=device)
    np.testing.assert_array_equal(got, reference.conv2d(x, w, None, Conv2dProblem.of(x.shape, w.shape)))
