"""Products whose matrices of weights are put together in registers; see test_half.py."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.device.reported import reported
from vkq.device.profiles import profile
from vkq.kernels import half_operands
from vkq.kernels.half_ways import FLOAT16, PARTS, STRAIGHT, WORDS, Way
from vkq.layout.extent import Spec
from vkq.probe import selftest
from vkq.select.path import half_refusal, pairs_refusal

from . import emulated
from .matrix_layers import known, only

TILE, K, N = "64x128", 512, 148  # k of two turns; outputs beyond a tile, and beyond 32 of them
SAYS: dict[str, Any] = {
    "half_tile_cycles": {}, "straight_tile_cycles": {TILE: (2, 2)}, "words_tile_cycles": {TILE: (1, 1)},
    "words_sizes": ((K, N), (768, N)), "matrix_pairs": True, "multiprocessors": 8,
}  # fmt: skip


@pytest.fixture(params=["16x8x16", "16x16x16"])
def words(
    strict_device: vkq.Device, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> vkq.Device:
    """Products of these sizes are known to be faster so."""
    known(monkeypatch, **SAYS)
    if half_refusal(strict_device):
        emulated.emulate(strict_device, monkeypatch, request.param, form="f16")
    elif pairs_refusal(strict_device):
        pytest.skip("the device has elements in another order")
    return strict_device


def layer_of(device: vkq.Device, k: int, n: int = N, points: int = 0, **options: Any) -> vkq.Linear:
    """Weights without zero points, whatever they are, or with some, from which they differ by 7 bits."""
    w = np.random.default_rng(k + n).integers(-128, 128, (n, k)).astype(np.int8)
    zero_points = np.arange(n).astype(np.int8) % (points + 1)
    if points:
        w = np.clip(w, -127 + points, 127).astype(np.int8)
        options["w_zero_point"] = zero_points
    return vkq.Linear(w, 1e-3, compute="float16", device=device, **options)


def variant_of(layer: vkq.Linear, rows: int, dtype: str = "float16") -> str:
    return layer.plan(Spec((rows, layer._gemm.k), dtype)).variants[-1]


@pytest.mark.parametrize(("k", "parts"), [(K, 1), (768, 1), (K, 2), (768, 2)])  # 768: parts of two turns, one
@pytest.mark.parametrize("points", [0, 3])
def test_results_are_those_of_matrices_from_memory(
    k: int, parts: int, points: int, words: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and outputs beyond whole tiles; bias and activation; what is infinite or no number stays in its
    row; replays give the same bytes."""
    only(monkeypatch, TILE, parts)
    rng = np.random.default_rng(parts)
    x = rng.normal(size=(70, k)).astype(np.float16)
    x[3, 5], x[4, k - 1] = np.nan, np.inf
    options = {"bias": rng.normal(size=N).astype(np.float32), "activation": "relu"}
    layer = layer_of(words, k, points=points, **options)
    assert variant_of(layer, 70) == f"{WORDS.split if parts > 1 else WORDS.product}:{TILE}"
    given = vkq.Tensor.from_numpy(x, words)
    with words.record() as recording:
        y = layer(given)
    recording.run()
    got = y.numpy()
    recording.run()
    assert y.numpy().tobytes() == got.tobytes()
    known(monkeypatch, **SAYS | {"matrix_pairs": False})
    other = layer_of(words, k, points=points, **options)
    assert variant_of(other, 70) == f"{STRAIGHT.split if parts > 1 else STRAIGHT.product}:float16_rows.{TILE}"
    want = other(x)
    if (k, parts) != (768, 2):  # the parts are others there
        np.testing.assert_array_equal(got, want)
    whole = [row for row in range(70) if row not in (3, 4)]
    np.testing.assert_allclose(got[whole].astype(np.float64), want[whole], rtol=2**-9, atol=1e-3)


def test_what_is_taken_so(words: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 rows of sizes that were timed, where the self-test found elements in pairs and weights have no
    zero points, or 7 bits; and not more workgroups than run at once."""
    so = f"{WORDS.product}:{TILE}"
    only(monkeypatch, TILE, 1)
    assert variant_of(layer_of(words, K), 66) == so
    for layer, rows, dtype in (
        (layer_of(words, K), 66, "float32"), (layer_of(words, 768 + 8), 66, "float16"),
        (layer_of(words, K, 144), 66, "float16"), (layer_of(words, K), 64 * 8 + 1, "float16"),
    ):  # fmt: skip
        assert variant_of(layer, rows, dtype).startswith(f"{STRAIGHT.product}:")
    assert variant_of(layer_of(words, K), 64 * 8) == so
    w, points = np.full((N, K), 127, np.int8), np.full(N, -1, np.int8)
    far = vkq.Linear(w, 1e-3, w_zero_point=points, compute="float16", device=words)
    assert variant_of(far, 66).startswith(f"{STRAIGHT.product}:")
    with monkeypatch.context() as inner:
        known(inner, **SAYS | {"words_sizes": ((K + 128, N),)})  # no whole turns
        assert variant_of(layer_of(words, K + 128), 66).startswith(f"{STRAIGHT.product}:")
    found = dataclasses.replace(selftest.report(words), failures={selftest.PAIRS: "something"})
    monkeypatch.setattr(selftest, "report", lambda _: found)
    assert variant_of(layer_of(words, K), 66).startswith(f"{STRAIGHT.product}:")


@pytest.mark.parametrize(("rows", "parts"), [(128, 4), (256, 2), (384, 1), (512, 1), (513, 0)])
def test_parts_of_an_h200(rows: int, parts: int) -> None:
    """4096^2, as it was timed: each in so many parts, no more than are there at once."""
    facts, sizes = reported("nvidia-h200"), (rows, 4096, 4096, 1)
    says = profile(facts)
    ways = [
        dataclasses.replace(way, parts=count)
        for of in (FLOAT16, STRAIGHT, WORDS)
        for way in of.able(facts, of.product)
        for count in PARTS
    ]

    def cycles(way: Way) -> float:
        return way.cycles(says, *sizes)

    best = min((way for way in ways if way.timed(says, *sizes)), key=cycles)
    assert (best.of == WORDS) == (parts > 0)
    assert best.parts == parts or not parts


def test_subgroups_have_32_outputs(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As weights lie in memory, and matrices 16 of them."""
    known(monkeypatch, **SAYS)
    for shape, subgroup, able in (("16x16x16", 32, 1), ("16x16x16", 64, 0), ("8x16x16", 32, 0)):
        device = emulated.capabilities(strict_device, shape, form="f16", subgroup=subgroup)
        assert len(list(WORDS.able(device, WORDS.product))) == able
        assert len(list(STRAIGHT.able(device, STRAIGHT.product))) == (shape != "8x16x16")


def test_the_order_of_words() -> None:
    """A uvec4 is four k of an output: of outputs and 16 more, and of 32 k and the next."""
    outputs, k = 48, 128  # and 16 that are not there
    pairs = np.arange(outputs * k // 4, dtype=np.int32).reshape(-1, k // 32, 16, 8)  # 16 outputs, 32 k
    got = half_operands.in_words(pairs.reshape(-1), k).reshape(2, k // 64, 2, 16, 4, 2, 2)
    for group, chunk, half, row, pair, block, more in np.ndindex(got.shape):
        tile = 2 * group + more
        want = pairs[tile, 2 * chunk + block, row, 4 * half + pair] if tile < len(pairs) else 0
        assert got[group, chunk, half, row, pair, block, more] == want
