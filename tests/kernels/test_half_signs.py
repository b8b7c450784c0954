"""Tests of weights that are stored as a sign and 7 bits, and loaded directly into float16 matrices."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.device.reported import profile_says
from vkq.kernels import half_configs, half_gemv, half_tiles
from vkq.kernels.half_weights import PAIRS_LAYOUT, packed_signs
from vkq.layout.extent import Spec
from vkq.layout.pack import layout
from vkq.probe import selftest
from vkq.probe.matrices import HALF
from vkq.runtime.packing import pack
from vkq.select.path import half_refusal

from . import emulated, sixteen_bits
from .matrix_layers import known, only

# (float16 rows, k, forced tile and number of parts, expected variant)
PRODUCTS = [
    (3, 256, None, None, f"{half_gemv.WORDS}:8"),
    (13, 264, None, None, f"{half_gemv.STEPS}:16"),
    (66, 264, "64x256", None, f"{half_configs.STRAIGHT.product}:float16_rows.64x256"),
    (66, 264, "64x128", None, f"{half_configs.STRAIGHT.product}:float16_rows.64x128"),
    (66, 264, "64x64", 2, f"{half_configs.STRAIGHT.split}:float16_rows.64x64"),
]
TILES = dict.fromkeys(("64x256", "64x128", "64x64"), (1, 1))


@pytest.fixture
def straight(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    """Return a device that loads weights directly into matrices."""
    sixteen_bits.provide(strict_device, monkeypatch)
    known(monkeypatch, half_tile_cycles={}, straight_tile_cycles=TILES)
    profile_says(monkeypatch, half_gemv, multiprocessors=2, matrix_pairs=True)
    if half_refusal(strict_device):
        emulated.emulate(strict_device, monkeypatch, "16x8x16", form="f16")
    return strict_device


def refuse(monkeypatch: pytest.MonkeyPatch, device: vkq.Device, test: str) -> None:
    """Make the report of the self-test say that *test* failed."""
    found = dataclasses.replace(selftest.report(device), failures={test: "something"})
    monkeypatch.setattr(selftest, "report", lambda _: found)


@pytest.mark.parametrize(("rows", "k", "tile", "parts", "variant"), PRODUCTS)
def test_products_have_the_bits_of_others(
    rows: int, k: int, tile: str | None, parts: int | None, variant: str, straight: vkq.Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each kernel uses the sign form for weights at most 127 from their zero points. Its results have the
    bits of the form without signs, which devices use if their matrices flush small values."""
    if tile:
        only(monkeypatch, tile, parts)
    rng = np.random.default_rng(k)
    apart, points = rng.integers(-127, 128, (36, k)), rng.integers(-3, 4, 36).astype(np.int8)
    apart[:, 7] = 0
    w = np.clip(apart + points[:, None], -128, 127).astype(np.int8)
    x = rng.normal(size=(rows, k)).astype(np.float16)

    def made() -> tuple[bool, Any]:
        layer = vkq.Linear(w, 1e-3, w_zero_point=points, compute="float16", device=straight)
        assert layer.plan(Spec(x.shape, "float16")).variants == (variant,)
        return layer._gemm.matrices.signed, layer(x)

    signed, got = made()
    refuse(monkeypatch, straight, selftest.SMALLS[HALF])
    otherwise, want = made()
    assert (signed, otherwise) == (True, False)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("groups", "way"), [(1, "words"), (2, "matrices")])
def test_convolutions_have_the_bits_of_others(
    groups: int, way: str, straight: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For convolutions with 7-bit weights, the kernels with and without the sign form give equal bits. The
    channels need more than one iteration."""
    profile_says(monkeypatch, half_tiles, matrix_pairs=way == "words")
    rng = np.random.default_rng(groups)
    w = rng.integers(-120, 121, (24, 72, 3, 3), np.int8)
    x = rng.normal(size=(1, 72 * groups, 3, 8)).astype(np.float16)
    points = rng.integers(-3, 4, 24).astype(np.int8)

    def made() -> tuple[bool, Any]:
        layer = vkq.Conv2d(
            w, 1e-3, w_zero_point=points, padding=1, groups=groups, compute="float16", method="matrix",
            device=straight,
        )  # fmt: skip
        gemm = layer._convolution.gemm
        kernel = half_tiles.HalfConvolution(
            gemm, layer._convolution.weight, layer._convolution.zero_points, groups
        )
        kernel.tile = "8x8x64_straight"
        layer._kernel = lambda m, q: kernel
        assert layer.plan(Spec(x.shape, "float16")).variants == (
            f"{half_configs.STRAIGHT_TILES}:float16.{way}.eights.8x8x64_straight",
        )
        return kernel.gathered.signed, layer(x)

    signed, got = made()
    refuse(monkeypatch, straight, selftest.SMALLS[HALF])
    otherwise, want = made()
    assert (signed, otherwise) == (True, False)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("weight", "point", "scale", "signed"), [
    (-127, 0, 1.0, True), (-128, 0, 1.0, False), (127, -1, 1.0, False), (127, 0, 2.0**103, False),
    (-128, -1, 2.0**102, True),
])  # fmt: skip
def test_which_weights_fit(weight: int, point: int, scale: float, signed: bool, straight: vkq.Device) -> None:
    """Weights are stored as sign and 7 bits unless a weight is more than 127 from its zero point, or a scale
    times 2^24 would be infinite."""
    w = np.zeros((36, 40), np.int8)
    w[35, 39] = weight
    points = np.zeros(36, np.int8)
    points[35] = point
    layer = vkq.Linear(w, scale, w_zero_point=points, compute="float16", device=straight)
    assert layer._gemm.matrices.signed is signed


def test_the_sign_of_a_byte_lies_in_the_next() -> None:
    w = np.random.default_rng(1).integers(-127, 128, (1, 16, 64), np.int8)
    bytes_ = packed_signs(w).view(np.uint8).reshape(-1, 4)
    sign = np.roll(bytes_ >> 7, -1, axis=1)
    numbers = np.where(sign == 1, -(bytes_ & 127).astype(np.int8), (bytes_ & 127).astype(np.int8))
    pairs = pack(layout(PAIRS_LAYOUT), w.reshape(1, 16, 2, 2, 16).swapaxes(-1, -2).reshape(w.shape))
    np.testing.assert_array_equal(numbers.reshape(-1), pairs.view(np.int8))


def test_matrices_that_lose_small_numbers_are_seen(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    element = r"unpackHalf2x16(word)[i]"
    flushed = (r"(#define element_of\(word, i\)) unpackHalf2x16\(word\)\[i\]",
               rf"\1 (abs({element}) < 6.1e-5 ? 0.0 : {element})")  # fmt: skip
    sixteen_bits.provide(strict_device, monkeypatch)
    for wrong, seen in ((flushed, True), (None, False)):
        with monkeypatch.context() as inner:
            emulated.emulate(strict_device, inner, "16x16x16", "16x8x16", form="f16", wrong=wrong)
            stages = selftest.stages(strict_device)
            said = stages[selftest.SMALLS[HALF]]()
            assert ("matrices of 16x16x16 f16, with weights of 2^-24: " in str(said)) == seen
            assert stages["matrices_half"]() is None
