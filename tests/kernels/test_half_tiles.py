"""Tests of convolutions on float16 matrix units with tiles of pixels in shared memory, and of split-K
products."""

import dataclasses

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from tests.conftest import EVERY
from tests.device.reported import profile_says, reported
from vkq.kernels import half, half_configs, half_tiles
from vkq.kernels.half_tiles import HalfConvolution
from vkq.layout.extent import Spec
from vkq.probe import selftest
from vkq.probe.matrices import HALF
from vkq.problem.names import parse
from vkq.select.path import half_refusal
from vkq.shader.catalog import catalog

from . import emulated
from .test_half import check, check_float16_images, known, layer_of, only

# Channels, pixels and outputs do not fill the tiles. The second case has two chunks of channels, strides,
# dilation and groups.
CASES = (
    "conv2d[N=2,IC=5,H=9,W=11,OC=18,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=140,H=7,W=19,OC=40,KH=2,KW=3,stride=2x1,padding=1x0x2x1,dilation=1x2,groups=2]",
)
SHADERS = half_tiles.TILES, half_configs.STRAIGHT_TILES
TILES, STRAIGHT = (catalog().shaders[name].axes["tile"] for name in SHADERS)
STRAIGHT_CASES = {
    # With the 3x3 filters, one loop iteration covers all rows of taps; the filter with six rows has too
    # many for this. Image rows of 40 and 36 pixels are whole vectors of four pixels, rows of 34 pixels
    # are not.
    "4x32x128_straight": (
        "conv2d[N=1,IC=72,H=5,W=40,OC=20,KH=3,KW=3,padding=1]",
        "conv2d[N=1,IC=24,H=5,W=40,OC=24,KH=6,KW=2,padding=2x0x3x1]",
        "conv2d[N=1,IC=24,H=4,W=36,OC=20,KH=3,KW=3,padding=1]",
        "conv2d[N=1,IC=24,H=4,W=34,OC=20,KH=3,KW=3,padding=1]",
    ),
    # Some tiles reach beyond the image, and some outputs beyond the last output; one filter has dilated
    # rows of taps.
    "4x24x128_straight": (
        "conv2d[N=1,IC=72,H=5,W=40,OC=20,KH=3,KW=3,padding=1]",
        "conv2d[N=1,IC=24,H=11,W=40,OC=24,KH=2,KW=3,padding=1x1x1x1,dilation=2x1]",
        "conv2d[N=1,IC=24,H=4,W=28,OC=136,KH=3,KW=3,padding=1]",
        "conv2d[N=1,IC=24,H=5,W=30,OC=20,KH=3,KW=3,padding=0x1x0x1]",
    ),
    # Halos begin at any pixel of a vector, or begin and end in vectors of two pixels. One filter has a
    # single row. In some cases the outputs do not fill the last matrix.
    "8x8x64_straight": (
        "conv2d[N=1,IC=24,H=9,W=12,OC=20,KH=3,KW=3,padding=1]",
        "conv2d[N=1,IC=72,H=9,W=14,OC=72,KH=3,KW=3,padding=1]",
        "conv2d[N=1,IC=16,H=4,W=10,OC=24,KH=2,KW=4,padding=0x3x1x0,groups=2]",
        "conv2d[N=2,IC=16,H=3,W=12,OC=136,KH=1,KW=3,padding=0x3x0x5,dilation=1x2,groups=2]",
    ),
}  # fmt: skip


@pytest.fixture
def units(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    known(monkeypatch, straight_tile_cycles={})  # test_half_configs.py tests the STRAIGHT kernels
    if half_refusal(strict_device):
        emulated.emulate(strict_device, monkeypatch, "16x8x16", form="f16")
    return strict_device


@pytest.mark.parametrize(("tile", "name"), list(zip(TILES, (*CASES, CASES[1]), strict=True)))
def test_every_tile_of_pixels(units: vkq.Device, tile: str, name: str) -> None:
    p, rng = parse(name), np.random.default_rng(len(tile))
    data = random_data(p, rng, "int8", "int8", w_zero_points="channel")
    x = rng.normal(size=p.x_shape).astype(np.float32)
    layer = vkq.Conv2d(
        data.w, data.w_scale, w_zero_point=data.w_zero_point, bias=data.float_bias, device=units,
        compute="float16", method="matrix", **data.options,
    )  # fmt: skip
    kernel = layer._kernel(*_method(layer, p))
    assert isinstance(kernel, HalfConvolution)
    kernel.tile = tile
    assert layer.explain(x.shape).variants == (f"{half_tiles.TILES}:float32.{tile}",)
    assert data.expected_sum(x, None, "float16").mismatch(layer(x)) is None
    check_float16_images(layer, x.astype(np.float16))


@pytest.mark.parametrize(
    ("tile", "name", "words"),  # *words* alternates over the cases; VKQ_EVERY_DRIVER=1 runs True and False
    [
        (tile, name, words)
        for tile in STRAIGHT
        for i, name in enumerate(STRAIGHT_CASES[tile])
        for words in ((False, True) if EVERY else (bool(i % 2),))
    ],
)
def test_weights_straight_from_memory(
    units: vkq.Device, tile: str, name: str, words: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions that load weights directly from memory give the same results for float16 images and
    for float32 images of equal values. Repeated runs give the same bytes; values beyond float16 become
    infinite."""
    p, rng = parse(name), np.random.default_rng(len(tile))
    data = random_data(p, rng, "int8", "int8", w_zero_points="channel")
    x = rng.normal(scale=0.1, size=p.x_shape).astype(np.float16)
    layer = vkq.Conv2d(
        data.w, data.w_scale, w_zero_point=data.w_zero_point, bias=data.float_bias, device=units,
        compute="float16", method="matrix", activation="relu", **data.options,
    )  # fmt: skip
    kernel = layer._kernel(*_method(layer, p))
    assert isinstance(kernel, HalfConvolution)
    want = layer(x.astype(np.float32))
    profile_says(monkeypatch, half_tiles, matrix_pairs=words)
    kernel.tile = tile
    given, way = vkq.Tensor.from_numpy(x, units), "words" if words else "matrices"
    lines = "eights" if p.ow % 8 == 0 else "fours" if p.ow % 4 == 0 else "twos"
    assert layer.plan(given.spec).variants == (f"{half_configs.STRAIGHT_TILES}:float16.{way}.{lines}.{tile}",)
    with units.record() as recording:
        y = layer(given)
    recording.run()
    first = y.numpy()
    assert first.dtype == np.float16
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float16).astype(np.float32)
    atol = 1e-5 * np.abs(want).max()
    np.testing.assert_allclose(first.astype(np.float32), rounded, rtol=2**-10, atol=atol)
    assert np.isinf(first).any() == (want.max() > 65520)
    recording.run()
    assert y.numpy().tobytes() == first.tobytes()


@pytest.mark.parametrize(("says", "failures", "way"), [
    (True, {}, "words"), (True, {selftest.PAIRS[HALF]: "something"}, "matrices"), (False, {}, "matrices"),
])  # fmt: skip
def test_weights_come_in_words_where_elements_are_pairs(
    says: bool, failures: dict[str, str], way: str, units: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weight matrices are assembled from words if the profile says that an invocation holds pairs of
    neighbouring elements and the self-test found no failure."""
    p = parse("conv2d[N=1,IC=16,H=8,W=40,OC=16,KH=3,KW=3,padding=1]")
    layer = vkq.Conv2d(
        np.ones((16, 16, 3, 3), np.int8), 0.1, padding=1, device=units, compute="float16", method="matrix"
    )
    kernel = layer._kernel(*_method(layer, p))
    assert isinstance(kernel, HalfConvolution)
    kernel.tile = "8x8x64_straight"
    profile_says(monkeypatch, half_tiles, matrix_pairs=says)
    found = dataclasses.replace(selftest.report(units), failures=failures)
    monkeypatch.setattr(selftest, "report", lambda _: found)
    tile = kernel.chosen(p, "float16")
    assert tile is not None
    assert tile.variant.axes["w"] == way


@pytest.mark.parametrize(("changed", "taken"), [
    ("N=1", True), ("W=36", True), ("W=42", True), ("W=41", False), ("IC=12", False), ("KH=1,KW=1", False),
    ("stride=2x1", False),
])  # fmt: skip
def test_what_weights_straight_from_memory_are_for(changed: str, taken: bool) -> None:
    sizes = dict(one.split("=") for one in ["N=1", "IC=16", "H=8", "W=40", "OC=16", "KH=3", "KW=3"])
    sizes |= dict(one.split("=") for one in changed.split(","))
    pad = int(sizes["KW"]) // 2
    name = ",".join(f"{key}={value}" for key, value in sizes.items())
    assert half_tiles._straight(parse(f"conv2d[{name},padding={pad}]")) == taken


@pytest.mark.parametrize(("name", "taken"), [
    ("N=10,IC=128,H=72,W=120,OC=128,KH=3,KW=3,padding=1", "4x24x128_straight"),
    ("N=8,IC=128,H=56,W=56,OC=128,KH=3,KW=3,padding=1", "4x32x128_straight"),
    ("N=2,IC=256,H=64,W=64,OC=256,KH=3,KW=3,padding=1", "4x32x128_straight"),
    ("N=1,IC=128,H=72,W=120,OC=128,KH=5,KW=5,padding=2", "4x24x128_straight"),
    # Layers with at most one tile for each multiprocessor, then with at most two, three and six.
    ("N=1,IC=64,H=56,W=56,OC=64,KH=3,KW=3,padding=1", "8x8x64_straight"),
    ("N=2,IC=64,H=56,W=56,OC=64,KH=7,KW=7,padding=3", "8x8x64_straight"),
    ("N=8,IC=512,H=16,W=16,OC=512,KH=3,KW=3,padding=1", "8x8x64_straight"),
    ("N=4,IC=128,H=56,W=56,OC=128,KH=3,KW=3,padding=1", "8x8x64_straight"),
    ("N=16,IC=64,H=56,W=56,OC=64,KH=3,KW=3,padding=1", "8x8x64_straight"),
    # Image widths that are multiples of four (28, 20), or only of two (14).
    ("N=8,IC=128,H=28,W=28,OC=128,KH=3,KW=3,padding=1", "8x8x64_straight"),
    ("N=32,IC=128,H=28,W=28,OC=128,KH=3,KW=3,padding=1", "4x32x128_straight"),
    ("N=8,IC=256,H=20,W=20,OC=256,KH=3,KW=3,padding=1", "4x24x128_straight"),
    ("N=8,IC=256,H=14,W=14,OC=256,KH=3,KW=3,padding=1", "8x8x64_straight"),
    # A stride of 2: no tile; pixels are gathered.
    ("N=1,IC=512,H=28,W=28,OC=1024,KH=1,KW=1,stride=2", None),
    ("N=8,IC=128,H=56,W=56,OC=128,KH=3,KW=3,padding=1,stride=2", None),
    ("N=1,IC=128,H=56,W=56,OC=128,KH=3,KW=3,padding=1,stride=2", None),
    ("N=8,IC=64,H=56,W=56,OC=128,KH=3,KW=3,padding=1,stride=2", None),
])  # fmt: skip
def test_what_an_h200_takes(
    name: str, taken: str | None, any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H200 the chosen tile (None: gathered pixels) is the fastest measured one, or less than 8 %
    slower."""
    p = parse(f"conv2d[{name}]")
    layer = vkq.Conv2d(np.zeros(p.weight_shape, np.int8), 1.0, padding=p.padding, device=any_device)
    made = layer._convolution
    monkeypatch.setattr(any_device, "capabilities", reported("nvidia-h200"))
    tile = HalfConvolution(made.gemm, made.weight, made.zero_points, 1).chosen(p, "float16")
    assert (tile and tile.variant.axes["tile"]) == taken


def _method(layer: vkq.Conv2d, p):  # type: ignore[no-untyped-def]
    return layer._method(p)[0], p


@pytest.mark.parametrize(("tile", "parts", "name"), [
    ("32x32", 2, "linear[M=33,K=520,N=36]"), ("64x64", 3, "linear[M=66,K=333,N=35]"),
])  # fmt: skip
def test_parts_of_k(
    units: vkq.Device, tile: str, parts: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, tile, parts)
    check(units, name)


@pytest.mark.parametrize("tile", catalog().shaders[half_configs.GATHERED[HALF].split].axes["tile"])
def test_parts_of_k_of_gathered_pixels(units: vkq.Device, tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split-K with gathered pixels is within the error bound: a part of k begins at any tap and channel."""
    only(monkeypatch, tile, 3)
    monkeypatch.setattr(HalfConvolution, "chosen", lambda *_: None)
    p = parse("conv2d[N=2,IC=140,H=7,W=5,OC=72,KH=3,KW=3,stride=2x1,padding=1x0x2x1,groups=2]")
    data = random_data(p, np.random.default_rng(4), "int8", "int8", w_zero_points="channel")
    layer = layer_of(units, data, method="matrix")
    x = np.random.default_rng(5).normal(size=p.x_shape).astype(np.float16)
    given = vkq.Tensor.from_numpy(x, units)
    assert layer.plan(given.spec).variants[-1] == f"{half_configs.GATHERED[HALF].split}:half.{tile}"
    with units.record() as recording:
        y = layer(given)
    recording.run()
    first, want = y.numpy(), layer(x.astype(np.float32))
    assert data.expected_sum(x.astype(np.float32), None, "float16").mismatch(want) is None
    np.testing.assert_allclose(first, want, rtol=2**-10, atol=1e-5 * np.abs(want).max())
    for _ in range(emulated.REPLAYS):
        recording.run()
        assert y.numpy().tobytes() == first.tobytes()


SPLIT = half_configs.FLOAT16.split


@pytest.mark.parametrize("tile", [each["tile"] for each in catalog().shaders[SPLIT].having(y="float16_rows")])
def test_rows_as_they_are(units: vkq.Device, tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few float16 rows are read without a copy, even if the rows do not fill a tile and k does not fill the
    iterations. float32 rows, and more float16 rows than MOST_ROWS, are packed first. Repeated runs of the
    smallest tile give the same bytes."""
    only(monkeypatch, tile, 2)
    rows, k = min(int(tile.split("x")[0]), 32) - 3, 264
    rng = np.random.default_rng(rows)
    data = random_data(parse(f"linear[M={rows},K={k},N=36]"), rng, "int8", "int8", w_zero_points="channel")
    x = rng.normal(scale=0.1, size=(rows, k)).astype(np.float32)
    layer = layer_of(units, data)
    assert layer.explain(x.shape).variants[1:] == (f"{SPLIT}:four.{tile}",)
    assert data.expected_sum(x, None, "float16").mismatch(layer(x)) is None
    given = vkq.Tensor.from_numpy(x.astype(np.float16), units)
    assert layer.plan(given.spec).variants == (f"{SPLIT}:float16_rows.{tile}",)
    with units.record() as recording:
        y = layer(given)
    recording.run()
    first = y.numpy()
    want = layer(given.numpy().astype(np.float32))
    np.testing.assert_array_equal(first, want.astype(np.float16))
    for _ in range(emulated.REPLAYS if tile == "16x64" else 1):
        recording.run()
        assert y.numpy().tobytes() == first.tobytes()
    many = Spec((half.MOST_ROWS + 1, k), "float16")
    assert layer.plan(many).variants[1:] == (f"{SPLIT}:half.{tile}",)


@pytest.mark.parametrize("k", [72, 77])  # a multiple of 8, and no multiple of 8
def test_float16_in_and_out(units: vkq.Device, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For float16 rows the product stores float16, rounded once. Quantized results are computed from
    float32."""
    only(monkeypatch, "32x32", 2)
    rng = np.random.default_rng(k)
    w, x = rng.integers(-127, 128, (36, k), np.int8), rng.normal(size=(65, k)).astype(np.float16)
    layer = vkq.Linear(w, 0.01, compute="float16", device=units)
    variants = layer.plan(vkq.Tensor.from_numpy(x, units).spec).variants
    assert [name.split(":")[1].split(".")[0] for name in variants] == ["float16", "half"]
    got = layer(vkq.Tensor.from_numpy(x, units))
    assert got.dtype == "float16"
    np.testing.assert_array_equal(got.numpy(), layer(x.astype(np.float32)).astype(np.float16))
    q = vkq.QParams(0.1, 3)
    narrow = vkq.Linear(w, 0.01, y_qparams=q, compute="float16", device=units)
    np.testing.assert_array_equal(
        narrow(vkq.Tensor.from_numpy(x, units)).numpy(), narrow(x.astype(np.float32))
    )


def test_an_infinite_pixel_reaches_only_who_sees_it(units: vkq.Device) -> None:
    p, rng = parse(CASES[0]), np.random.default_rng(2)
    data = random_data(p, rng, "int8", "int8", w_range=(1, 127))
    x = rng.normal(size=p.x_shape).astype(np.float32)
    layer = vkq.Conv2d(data.w, data.w_scale, device=units, compute="float16", method="matrix", **data.options)
    layer._kernel(*_method(layer, p)).tile = "4x8x64"  # type: ignore[attr-defined]
    clean = layer(x)
    x[1, 3, 4, 5] = np.inf
    got = layer(x)
    seen = np.zeros(p.y_shape, bool)
    seen[1, :, 3:6, 4:7] = True
    assert np.isposinf(got[seen]).all()
    np.testing.assert_array_equal(got[~seen], clean[~seen])
