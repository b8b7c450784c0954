"""Tests of float weights stored as float16, on float16 matrix units."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.cases import random_data
from tests.device.reported import profile_says
from tests.runtime.work import replayed
from vkq.kernels import half_configs, half_planes, half_tiles
from vkq.kernels.half_tiles import HalfConvolution
from vkq.probe.matrices import HALF
from vkq.problem.names import parse
from vkq.select.path import half_refusal

from . import emulated
from .matrix_layers import known, only
from .test_half import check_float16_images

GATHERED, PLANES = half_configs.GATHERED[HALF], half_configs.PLANES[HALF, "float32"]
# M, N and K do not fill the tiles; some K are multiples of 8. One case splits k in two, some have groups or
# strides.
CASES = (
    (half_configs.FLOAT16.split, "32x32", "linear[M=33,K=264,N=35]"),
    (half_configs.FLOAT16.product, "64x64", "linear[M=70,K=37,N=68]"),
    (GATHERED.product, "32x32", "conv2d[N=2,IC=5,H=9,W=11,OC=18,KH=3,KW=3,padding=1]"),
    (PLANES.product, "16x64", "conv2d[N=1,IC=70,H=4,W=10,OC=40,KH=1,KW=1,groups=2]"),
    (half_tiles.TILES, "4x8x32",
     "conv2d[N=1,IC=140,H=7,W=9,OC=40,KH=2,KW=3,stride=2x1,padding=1x0x2x1,dilation=1x2,groups=2]"),
)  # fmt: skip


@pytest.fixture
def units(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    known(monkeypatch)
    if half_refusal(strict_device):
        emulated.emulate(strict_device, monkeypatch, "16x8x16", form="f16")
    return strict_device


def layer_of(device: vkq.Device, name: str, dtype: str) -> tuple[Any, Any, npt.NDArray[np.float32]]:
    """Return (layer, the oracle's operands, x). The oracle's weight is the layer's weight rounded to
    float16, with a scale of 1."""
    p, rng = parse(name), np.random.default_rng(len(name))
    w = rng.normal(size=p.weight_shape).astype(dtype)
    halves, ones = w.astype(np.float16).astype(np.float32), np.ones(len(w), np.float32)
    data = random_data(p, rng)
    small = {"bias": data.bias % 9, "x_q": vkq.QParams(0.25)}  # `data.float_bias` is computed from them
    data = dataclasses.replace(data, w=halves, w_scale=ones, w_zero_point=None, **small)
    kind: Any = vkq.Linear if w.ndim == 2 else vkq.Conv2d
    layer = kind(w, bias=data.float_bias, compute="float16", device=device, **data.options)
    return layer, data, rng.normal(size=p.x_shape).astype(np.float32)


@pytest.mark.parametrize(("tile", "parts", "k", "n"), [("64x256", 1, 72, 68), ("64x64", 2, 264, 36)])
def test_weights_direct_from_memory(
    units: vkq.Device, tile: str, parts: int, k: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products that load weights directly into matrices are within the error bound. Results for float16
    rows equal those for float32 rows of equal values, rounded once."""
    known(monkeypatch, half_tile_cycles={}, straight_tile_cycles={tile: (1, 1)}, matrix_pairs=True)
    only(monkeypatch, tile, parts)
    layer, data, x = layer_of(units, f"linear[M=34,K={k},N={n}]", "float16")
    of = half_configs.STRAIGHT
    assert layer.explain(x.shape).variants[-1].startswith((of.product if parts == 1 else of.split) + ":")
    x = x.astype(np.float16)
    y = layer(x.astype(np.float32))
    assert data.expected_sum(x.astype(np.float32), None, "float16").mismatch(y) is None
    np.testing.assert_array_equal(layer(x), y.astype(np.float16))


def test_one_row(units: vkq.Device) -> None:
    """A product of a single row uses matrix units, too, and is within their error bound."""
    layer, data, x = layer_of(units, "linear[M=1,K=264,N=36]", "float32")
    assert "coopmat" in layer.explain(x.shape).variants[-1]
    assert data.expected_sum(x, None, "float16").mismatch(layer(x)) is None


@pytest.mark.parametrize(("words", "tile", "name"), [
    (False, "8x8x64_straight", "conv2d[N=1,IC=72,H=4,W=10,OC=20,KH=3,KW=3,padding=1]"),
    (True, "4x24x128_straight", "conv2d[N=1,IC=24,H=11,W=40,OC=24,KH=2,KW=3,padding=1x1x1x1,dilation=2x1]"),
])  # fmt: skip
def test_convolutions_with_weights_direct_from_memory(
    units: vkq.Device, words: bool, tile: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions that load weights directly into matrices, and pixels of float16 images in tiles, are
    within the error bound. Repeated runs give the same bytes."""
    profile_says(monkeypatch, half_tiles, matrix_pairs=words)
    one_kernel(monkeypatch, half_tiles.TILES, tile)
    layer, data, x = layer_of(units, name, "float16")
    x = (x / 8).astype(np.float16)
    given = vkq.Tensor.from_numpy(x, units)
    (variant,) = layer.plan(given.spec).variants
    assert variant.startswith(half_configs.STRAIGHT_TILES)
    assert variant.endswith(tile)
    assert f".{'words' if words else 'matrices'}." in variant
    got = replayed(layer, x, units, 2)
    expected = data.expected_sum(x.astype(np.float32), None, "float16")
    wrong = np.abs(got - expected.y) > expected.bound + 2.0**-11 * np.abs(expected.y) + 2.0**-25
    assert not wrong.any()


def one_kernel(monkeypatch: pytest.MonkeyPatch, shader: str, tile: str) -> None:
    """Force the kernel of a convolution (image tiles, planes or gathered pixels, chosen by *shader*) and
    the kernel's tile."""
    pixels, planes = shader == half_tiles.TILES, shader == PLANES.product
    made, init = HalfConvolution.__init__, half_planes.Planes.__init__

    def with_tile(self: HalfConvolution, *args: Any) -> None:
        made(self, *args)
        self.tile = tile if pixels else None

    def of_planes(self: half_planes.Planes, *args: Any) -> None:
        init(self, *args)
        self.tile = tile

    monkeypatch.setattr(HalfConvolution, "__init__", with_tile)
    if not pixels:
        monkeypatch.setattr(HalfConvolution, "chosen", lambda *_: None)
    monkeypatch.setattr(half_planes.Planes, "_cycles", lambda *_: 0.0 if planes else np.inf)
    if planes:
        monkeypatch.setattr(half_planes.Planes, "__init__", of_planes)
    elif not pixels:
        only(monkeypatch, tile, 2 if shader == half_configs.FLOAT16.split else 1)


@pytest.mark.parametrize(("shader", "tile", "name"), CASES, ids=lambda value: str(value).partition("[")[0])
def test_every_kernel(
    units: vkq.Device, shader: str, tile: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are within the bound of float32 sums, computed with the weight rounded to float16. A
    float16 input gives the float32 result rounded once."""
    known(monkeypatch, straight_tile_cycles={})  # test_weights_direct_from_memory tests the STRAIGHT kernels
    one_kernel(monkeypatch, shader, tile)
    layer, data, x = layer_of(units, name, "float32")
    assert layer.scheme == "f32_f16"
    explained = layer.explain(x.shape)
    assert "compute='float16': matrices of float16" in explained.reason
    assert explained.variants[-1].startswith(f"{shader}:")
    assert explained.variants[-1].endswith(tile)
    assert data.expected_sum(x, None, "float16").mismatch(layer(x)) is None
    if x.ndim == 4:
        check_float16_images(layer, x.astype(np.float16))


def test_replays_and_what_is_no_number(units: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated runs give the same bytes. Infinities and NaN affect only their own rows."""
    shader, tile, name = CASES[0]
    one_kernel(monkeypatch, shader, tile)
    layer, _, x = layer_of(units, name, "float16")
    assert layer.scheme == "f16_f16"
    clean = layer(x)
    x[3, 7], x[5, 2] = np.inf, np.nan
    got = replayed(layer, x, units, emulated.REPLAYS)
    assert np.isinf(got[3]).all()
    assert np.isnan(got[5]).all()
    rest = [row for row in range(len(x)) if row not in (3, 5)]
    np.testing.assert_array_equal(got[rest], clean[rest])


def test_what_stays_elsewhere(units: vkq.Device) -> None:
    """Depthwise convolutions and products with k = 0 use kernels without matrix units."""
    rng = np.random.default_rng(1)
    for shape, x, groups in (
        ((16, 1, 3, 3), (1, 16, 9, 9), 16),
        ((33, 0), (40, 0), 1),
    ):
        kind: Any = vkq.Linear if len(shape) == 2 else vkq.Conv2d
        options = {"groups": groups} if groups > 1 else {}
        layer = kind(rng.normal(size=shape).astype(np.float16), compute="float16", device=units, **options)
        assert "coopmat" not in str(layer.explain(x).variants)
        assert np.isfinite(layer(np.ones(x, np.float32))).all()
