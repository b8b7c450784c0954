"""Tests of 1x1 convolutions that read NCHW images directly, on float16 and bfloat16 matrix units."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from tests.device.reported import reported
from tests.runtime.work import replayed
from vkq.kernels import half_planes
from vkq.kernels.half_planes import PartsConvolution
from vkq.kernels.half_tiles import HalfConvolution
from vkq.probe.matrices import BRAIN, FLOAT_FEATURES, HALF
from vkq.problem.names import parse
from vkq.select.path import half_refusal
from vkq.shader.catalog import catalog

from . import emulated
from .test_half import check_float16_images

# Pixels, outputs and channels are not multiples of tiles and iterations. The first image is an odd number
# of vectors; the second convolution has groups.
CASES = (
    "conv2d[N=3,IC=20,H=2,W=10,OC=70,KH=1,KW=1]",
    "conv2d[N=1,IC=270,H=8,W=5,OC=40,KH=1,KW=1,groups=2]",
)
TILES = [
    (form, tile, CASES[i % 2])
    for form in (HALF, BRAIN)
    for i, tile in enumerate(catalog().shaders[half_planes.PLANES[form, "float32"].product].axes["tile"])
]


def prepared(device: vkq.Device, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_planes, "LEAST_MACS", dict.fromkeys(half_planes.LEAST_MACS, 0))
    monkeypatch.setattr(half_planes.Planes, "_cycles", lambda *_: 0.0)
    if half_refusal(device, form):
        emulated.emulate(device, monkeypatch, "16x8x16", form=form)


def layer_of(device: vkq.Device, data: Any, form: str) -> vkq.Conv2d:
    compute = "float16" if form == HALF else "float32"
    return vkq.Conv2d(
        data.w, data.w_scale, w_zero_point=data.w_zero_point, bias=data.float_bias, device=device,
        compute=compute, **data.options,
    )  # fmt: skip


@pytest.mark.parametrize(("form", "tile", "name"), TILES)
def test_every_tile(
    strict_device: vkq.Device, form: str, tile: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(strict_device, form, monkeypatch)
    made = half_planes.Planes.__init__

    def init(self: Any, *args: Any) -> None:
        made(self, *args)
        self.tile = tile

    monkeypatch.setattr(half_planes.Planes, "__init__", init)
    problem, rng = parse(name), np.random.default_rng(1)
    data = random_data(problem, rng, "int8", "int8", w_zero_points="channel")
    x = rng.normal(size=problem.x_shape).astype(np.float32)
    layer = layer_of(strict_device, data, form)
    shader = half_planes.PLANES[form, "float32"].product
    (variant,) = layer.explain(x.shape).variants
    assert variant.startswith(shader)
    assert variant.endswith(tile)
    compute = "float16" if form == HALF else "float32"
    assert data.expected_sum(x, None, compute).mismatch(layer(x)) is None
    if form == HALF:
        check_float16_images(layer, x.astype(np.float16))


@pytest.mark.parametrize("form", [HALF, BRAIN])
def test_what_is_no_number_stays_in_its_pixels(
    strict_device: vkq.Device, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infinities and NaN affect only results of their own group and pixel. Repeated float16 runs give the
    same bytes."""
    prepared(strict_device, form, monkeypatch)
    problem, rng = parse("conv2d[N=1,IC=18,H=4,W=4,OC=40,KH=1,KW=1,groups=2]"), np.random.default_rng(1)
    w = rng.integers(1, 128, problem.weight_shape, np.int8)
    x = rng.normal(size=problem.x_shape).astype(np.float32)
    compute = "float16" if form == HALF else "float32"
    layer = vkq.Conv2d(w, 0.01, groups=2, compute=compute, device=strict_device)
    assert half_planes.PLANES[form, "float32"].product in layer.explain(x.shape).variants[0]
    clean = layer(x)
    x[0, 9, 1], x[0, 10:, 2], x[0, 3, 3, 3] = np.nan, -np.inf, np.inf
    got = replayed(layer, x, strict_device, emulated.REPLAYS) if form == HALF else layer(x)
    assert np.isnan(got[0, 20:, 1]).all()
    assert np.isneginf(got[0, 20:, 2]).all()
    assert np.isposinf(got[0, :20, 3, 3]).all()
    np.testing.assert_array_equal(got[0, :20, :3], clean[0, :20, :3])
    np.testing.assert_array_equal(got[0, :, 0], clean[0, :, 0])


def test_other_convolutions_are_gathered_or_in_tiles(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions with strides, padding, several taps, or pixels that are not whole vectors use other
    kernels."""
    prepared(strict_device, BRAIN, monkeypatch)
    w = np.ones((40, 16, 1, 1), np.int8)

    def shader(size: int, **options: Any) -> str:
        layer = vkq.Conv2d(w, 1.0, method="matrix", device=strict_device, **options)
        return str(layer.explain((1, 16, size, size)).variants[-1]).split(":")[0]

    planes = half_planes.PLANES[BRAIN, "float32"].product
    assert shader(8) == planes
    assert {shader(7), shader(8, stride=2), shader(8, padding=1)} == {"conv2d_q8csw__parts_coopmat"}


@pytest.mark.parametrize(("compute", "dtype", "name", "taken"), [
    ("float16", "float16", "N=1,IC=256,H=56,OC=64", "planes 32x64"),
    ("float16", "float16", "N=1,IC=512,H=28,OC=128", "planes 16x64"),
    ("float16", "float16", "N=8,IC=256,H=56,OC=64", "planes 64x64"),
    ("float16", "float16", "N=1,IC=64,H=56,OC=256", "4x8x64"),
    ("float16", "float16", "N=1,IC=64,H=56,OC=64", "4x8x32"),
    ("float16", "float16", "N=32,IC=64,H=56,OC=256", "gathered 128x256"),
    # float32 images: reading them directly takes longer
    ("float16", "float32", "N=1,IC=256,H=56,OC=64", "planes 32x64"),
    ("float16", "float32", "N=8,IC=96,H=56,OC=24", "4x8x32"),
    ("float16", "float32", "N=8,IC=512,H=28,OC=256", "gathered 64x128"),
    ("float16", "float32", "N=32,IC=1024,H=14,OC=512", "gathered 128x256"),
    ("float32", "float32", "N=1,IC=32,H=28,OC=192", "planes 32x64"),
    ("float32", "float32", "N=32,IC=64,H=56,OC=64", "planes 64x64"),
    ("float32", "float32", "N=8,IC=512,H=14,OC=512", "gathered 64x64"),
    ("float32", "float32", "N=8,IC=128,H=28,OC=128,KH=3,KW=3,padding=1", "gathered 64x64"),
    ("float32", "float32", "N=10,IC=128,H=72,W=120,OC=128,KH=3,KW=3,padding=1", "gathered 128x128"),
])  # fmt: skip
def test_what_an_h200_takes(
    any_device: vkq.Device, compute: str, dtype: str, name: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H200 the chosen kernel is the fastest measured one, or less than 8 % slower."""
    sizes = dict(one.split("=") for one in name.split(","))
    sizes = {"W": sizes["H"], "KH": "1", "KW": "1"} | sizes
    p = parse(f"conv2d[{','.join(f'{key}={value}' for key, value in sizes.items())}]")
    layer = vkq.Conv2d(np.zeros(p.weight_shape, np.int8), 1.0, padding=p.padding, device=any_device)
    made = layer._convolution
    monkeypatch.setattr(any_device, "capabilities", with_brain(reported("nvidia-h200")))
    kernel: HalfConvolution | PartsConvolution
    if compute == "float16":
        kernel = HalfConvolution(made.gemm, made.weight, made.zero_points, 1)
        tile = kernel.chosen(p, dtype)
        either = kernel._other(p, dtype)[1]
    else:
        kernel, tile = PartsConvolution(made.gemm, made.weight), None
        either = kernel.chosen(p)
    if tile:
        found = tile.variant.axes["tile"]
    elif either is kernel.planes:
        config = kernel.planes.config(p, dtype)
        found = f"planes {config and config.variant.axes['tile']}"
    else:
        gathered = kernel.gathered.config(p.gemm_m, kernel.gathered.gathering, dtype)
        found = f"gathered {gathered.variant.axes['tile']}"
    assert found == taken


def with_brain(facts: vkq.Capabilities) -> vkq.Capabilities:
    """Return the capabilities with bfloat16 matrices added, which newer drivers list."""
    more = [
        dataclasses.replace(one, a=BRAIN, b=BRAIN)
        for one in facts.cooperative_matrices
        if (one.a, one.b, one.c, one.d) == (HALF, HALF, "f32", "f32")
    ]
    features = dict.fromkeys((FLOAT_FEATURES[BRAIN], "shaderBFloat16Type"), True)
    return dataclasses.replace(
        facts, features={**facts.features, **features},
        cooperative_matrices=(*facts.cooperative_matrices, *more),
    )  # fmt: skip
