"""Tests of products on float16 matrix units that assemble their weight matrices in registers."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.device.reported import reported
from vkq.device.profiles import profile
from vkq.kernels.half import HalfMatrices
from vkq.kernels.half_configs import FLOAT16, K_SPLITS, STRAIGHT, WORDS
from vkq.layout.extent import Spec
from vkq.probe import selftest
from vkq.probe.matrices import HALF, advertised_half
from vkq.probe.words import in_order, order
from vkq.select.path import half_refusal, pairs_refusal

from . import emulated
from .matrix_layers import known, only

TILE, K, N = "64x128", 512, 276  # K is two iterations; N is no multiple of a tile or of 32
TILES = (TILE, "64x256_eight", "64x256")
SAYS: dict[str, Any] = {
    "half_tile_cycles": {}, "straight_tile_cycles": {TILE: (2, 2)}, "matrix_pairs": True,
    "words_tile_cycles": dict.fromkeys(TILES, (1, 1, 1)), "multiprocessors": 8,
}  # fmt: skip


@pytest.fixture(params=["16x8x16", "16x16x16"])
def words(
    strict_device: vkq.Device, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> vkq.Device:
    """Return a device whose profile chooses the kernel that assembles weight matrices (WORDS)."""
    known(monkeypatch, **SAYS)
    if half_refusal(strict_device):
        emulated.emulate(strict_device, monkeypatch, request.param, form="f16")
    elif pairs_refusal(strict_device):
        pytest.skip("the device has elements in another order")
    return strict_device


def layer_of(device: vkq.Device, k: int, n: int = N, points: int = 0, **options: Any) -> vkq.Linear:
    """Return a layer whose weights are at most 127 from their zero points."""
    w = np.random.default_rng(k + n).integers(-127 + points, 128, (n, k)).astype(np.int8)
    if points:
        options["w_zero_point"] = np.arange(n).astype(np.int8) % (points + 1)
    return vkq.Linear(w, 1e-3, compute="float16", device=device, **options)


def variants_of(layer: vkq.Linear, rows: int, dtype: str = "float16") -> tuple[str, ...]:
    return tuple(layer.plan(Spec((rows, layer._gemm.k), dtype)).variants)


@pytest.mark.parametrize(
    ("tile", "k", "parts", "points"),
    [(TILE, 768, 1, 0), (TILE, K, 2, 3), (TILE, 768, 2, 3),
     (TILES[1], 768, 1, 3), (TILES[2], 384, 1, 0), (TILES[2], 128, 1, 3)],
)  # fmt: skip  # k = 768 is three iterations; the first of two parts of k has two
def test_results_are_those_of_matrices_from_memory(
    tile: str, k: int, parts: int, points: int, words: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results equal those of the kernel that loads weight matrices from memory. Rows and outputs do not
    fill tiles; the layer has a bias and an activation. Infinities and NaN affect only their own rows. A
    second run gives the bytes of the first."""
    only(monkeypatch, tile, parts)
    rng = np.random.default_rng(parts)
    x, n = rng.normal(size=(70, k)).astype(np.float16), N if "256" in tile else N - 128
    x[3, 5], x[4, k - 1] = np.nan, np.inf
    options = {"bias": rng.normal(size=n).astype(np.float32), "activation": "relu"}
    layer = layer_of(words, k, n, points=points, **options)
    assert variants_of(layer, 70) == (f"{WORDS.split if parts > 1 else WORDS.product}:{tile}",)
    given = vkq.Tensor.from_numpy(x, words)
    with words.record() as recording:
        y = layer(given)
    recording.run()
    got = y.numpy()
    recording.run()
    assert y.numpy().tobytes() == got.tobytes()
    known(monkeypatch, **SAYS | {"matrix_pairs": False})
    only(monkeypatch, TILE, parts)
    other = layer_of(words, k, n, points=points, **options)
    assert variants_of(other, 70) == (
        f"{STRAIGHT.split if parts > 1 else STRAIGHT.product}:float16_rows.{TILE}",
    )
    want = other(x)
    if (k, parts) != (768, 2):  # for (768, 2), the kernels split k at different k
        np.testing.assert_array_equal(got, want)
    whole = [row for row in range(70) if row not in (3, 4)]
    np.testing.assert_allclose(got[whole].astype(np.float64), want[whole], rtol=2**-9, atol=1e-3)


def test_what_is_taken_so(words: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is used for float16 rows if k is a whole number of iterations, the weights have 7 bits
    and the self-test found pairs of neighbouring elements."""
    so = f"{WORDS.product}:{TILE}"
    only(monkeypatch, TILE, 1)
    assert variants_of(layer_of(words, K), 66) == (so,)
    far = vkq.Linear(np.full((N, K), -128, np.int8), 1e-3, compute="float16", device=words)
    for layer, dtype in (
        (layer_of(words, K), "float32"), (layer_of(words, K + 128), "float16"),
        (layer_of(words, K, N + 1), "float16"), (far, "float16"),
    ):  # fmt: skip
        assert so not in variants_of(layer, 66, dtype)
    found = dataclasses.replace(selftest.report(words), failures={selftest.PAIRS[HALF]: "something"})
    monkeypatch.setattr(selftest, "report", lambda _: found)
    assert so not in variants_of(layer_of(words, K), 66)


def test_subgroups_have_32_outputs(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel needs matrices of 16 outputs. A subgroup computes 32 outputs that are contiguous in
    memory, or 64."""
    known(monkeypatch, **SAYS)
    for shape, subgroup, able in (("16x16x16", 32, 3), ("16x16x16", 8, 1), ("8x16x16", 32, 0)):
        device = emulated.capabilities(strict_device, shape, form="f16", subgroup=subgroup)
        assert len(list(WORDS.able(device))) == able


@pytest.mark.parametrize(
    ("rows", "n", "k", "tile", "parts"),
    [(128, 4096, 4096, "64x128", 4), (256, 4096, 4096, "64x128", 1), (384, 4096, 4096, "64x256_eight", 1),
     (512, 4096, 4096, "64x256_eight", 1), (768, 4096, 4096, "64x128", 1), (1024, 4096, 4096, "64x256", 1),
     (1536, 4096, 4096, "64x256_eight", 1), (4096, 4096, 4096, "64x256", 1), (512, 1024, 1024, "", 0),
     (1024, 1024, 1024, "64x128", 1), (4096, 1024, 1024, "64x256", 1), (128, 11008, 4096, "64x256_eight", 1),
     (256, 11008, 4096, "64x128", 1), (512, 11008, 4096, "64x256_eight", 1),
     (128, 4096, 11008, "64x128", 4), (512, 4096, 11008, "64x256_eight", 1),
     (128, 8192, 8192, "64x128", 2), (512, 8192, 8192, "64x256", 1), (1024, 4096, 1152, "64x256", 1)],
)  # fmt: skip
def test_what_an_h200_takes_so(rows: int, n: int, k: int, tile: str, parts: int) -> None:
    """On an H200 the chosen tile and number of parts of k are the fastest measured ones, or at most 5 %
    slower."""
    facts = reported("nvidia-h200")
    says, sizes = profile(facts), (rows, n, k, 1)
    configs = [
        dataclasses.replace(one, parts=count)
        for of in (FLOAT16, STRAIGHT, WORDS)
        for one in of.able(facts)
        if one.takes(k)
        for count in K_SPLITS
        if count == 1 or one.may_split(rows, n, 1)
    ]
    best = min(configs, key=lambda config: config.cycles(says, *sizes))
    assert ((best.variant.axes["tile"], best.parts) if best.of == WORDS else ("", 0)) == (tile, parts)


def test_the_order_of_words(words: vkq.Device) -> None:
    """Words of weights are stored in blocks of 32 neighbouring outputs and 32 k. Words of outputs beyond
    the last output are zero."""
    layer = layer_of(words, K)
    matrices = HalfMatrices(layer._gemm, K)
    pairs, found = (
        np.asarray(matrices.loaders.direct._make()),
        order(words, *advertised_half(words.capabilities)[:1]),
    )
    got = matrices.loaders.prepacked.words(advertised_half(words.capabilities)[0])._make()
    got = np.asarray(got).reshape(-1, K // 32, 2, found.size)
    found = found.reshape(-1, 4)[:, [0, 2, 1, 3]].reshape(found.shape)
    want = in_order(pairs, found).reshape(-1, K // 32, found.size)
    assert matrices.loaders.prepacked.words(advertised_half(words.capabilities)[0]).bytes == 4 * got.size
    for group, block, half in np.ndindex(got.shape[:3]):
        tile = 2 * group + half
        np.testing.assert_array_equal(got[group, block, half], want[tile, block] if tile < len(want) else 0)
