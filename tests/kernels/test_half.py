"""Tests of products and convolutions on float16 matrix units. If VKQ_TEST_DEVICE names a GPU with matrix
units, the shaders run unchanged; software drivers run emulated matrices (emulated.py)."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from vkq.kernels import half_configs, half_operands
from vkq.probe import selftest
from vkq.probe.matrices import advertised_half, lacking_half
from vkq.problem.names import parse
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run
from vkq.select.path import half_refusal
from vkq.shader.catalog import catalog

from ..ops import doctored
from . import emulated
from .matrix_layers import CONVOLUTIONS, known, only

# M, N and K do not fill the tiles; one K is a multiple of 8, the other is not.
PRODUCTS = ("linear[M=131,K=37,N=141]", "linear[M=33,K=264,N=35]")
TILES = catalog().shaders[half_configs.FLOAT16.product].axes["tile"]
EVERY = [(tile, names[i % 2]) for i, tile in enumerate(TILES) for names in (PRODUCTS, CONVOLUTIONS)]


@pytest.fixture
def units(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    known(monkeypatch, straight_tile_cycles={})  # test_half_configs.py tests the STRAIGHT kernels
    if half_refusal(strict_device):
        emulated.emulate(strict_device, monkeypatch, "16x16x16", form="f16")
    return strict_device


def layer_of(device: vkq.Device, data: Any, **options: Any) -> Any:
    kind = vkq.Linear if data.problem.name.startswith("linear") else vkq.Conv2d
    return kind(
        data.w, data.w_scale, w_zero_point=data.w_zero_point, bias=data.float_bias, device=device,
        compute="float16", **data.options, **options
    )  # fmt: skip


def check(device: vkq.Device, name: str) -> None:
    problem, rng = parse(name), np.random.default_rng(len(name))
    data = random_data(problem, rng, "int8", "int8", w_zero_points="channel")
    x = rng.normal(size=problem.x_shape).astype(np.float32)
    layer = layer_of(device, data)
    assert layer.scheme == "q8csw_f16"
    assert "coopmat" in layer.explain(problem.x_shape).variants[-1]
    assert data.expected_sum(x, None, "float16").mismatch(layer(x)) is None
    if name.startswith("conv2d"):
        check_float16_images(layer, x.astype(np.float16))


def check_float16_images(layer: vkq.Conv2d, x: Any) -> None:
    """Check that a float16 image is read without a cast, and that the result equals the result for a
    float32 image of equal values, rounded once."""
    given = vkq.Tensor.from_numpy(x, layer.device)
    assert not any("cast" in name for name in layer.plan(given.spec).variants)
    got = layer(given)
    assert got.dtype == "float16"
    np.testing.assert_array_equal(got.numpy(), layer(x.astype(np.float32)).astype(np.float16))


@pytest.mark.parametrize(("tile", "name"), EVERY)
def test_every_tile(units: vkq.Device, tile: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, tile)
    check(units, name)


@pytest.mark.parametrize(("shape", "subgroup"), [("16x8x16", 32), ("16x16x16", 64), ("8x8x16", 8)])
def test_every_shape_of_matrices(
    strict_device: vkq.Device, shape: str, subgroup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = strict_device
    emulated.emulate(device, monkeypatch, shape, form="f16", subgroup=subgroup)
    only(monkeypatch, "64x64")
    assert str(advertised_half(device.capabilities)[0]) == f"{shape} f16"
    assert selftest.stages(device)["matrices_half"]() is None
    check(device, PRODUCTS[1])


def test_extremes_float16_tensors_and_replays(units: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities and NaN affect only their own rows, and values beyond float16 become infinite. float16
    tensors give float16 results; repeated runs (200 on hardware) give the same bytes."""
    only(monkeypatch, "32x32", 2)
    problem, rng = parse(PRODUCTS[1]), np.random.default_rng(3)
    data = random_data(problem, rng, "int8", "int8", w_range=(1, 127))
    x = rng.normal(size=problem.x_shape).astype(np.float32)
    x[2, 5], x[3, 7], x[4, 9], x[5] = np.nan, np.inf, 1e30, 1e-6
    layer = layer_of(units, data)
    got = layer(x)
    assert np.isnan(got[2]).all()
    assert np.isposinf(got[3:5]).all()
    whole = [row for row in range(33) if row not in (2, 3, 4)]
    want = data.expected_sum(x[whole], None, "float16")
    assert want.mismatch(got[whole]) is None
    tensor = vkq.Tensor.from_numpy(x[whole].astype(np.float16), units)
    layer = vkq.Linear(data.w, 1e-3, compute="float16", device=units)
    with units.record() as recording:
        y = layer(tensor)
    recording.run()
    assert y.dtype == "float16"
    first = y.numpy()
    rounded = layer(tensor.numpy().astype(np.float32))
    assert np.abs(rounded).max() < 65504
    np.testing.assert_allclose(first, rounded, rtol=2**-10, atol=2**-14)
    for _ in range(emulated.REPLAYS):
        recording.run()
        assert y.numpy().tobytes() == first.tobytes()


def test_parts_that_no_tile_has_are_refused(units: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to split k with the tile 128x256, which has no split-K variant, raises a PathError."""
    only(monkeypatch, "128x256", 2)
    layer = vkq.Linear(np.ones((64, 32), np.int8), 1.0, compute="float16", device=units)
    with pytest.raises(vkq.PathError, match=r"16 rows x 64 columns x 32 of k \(tile 128x256, 2 parts of k"):
        layer.explain((16, 32))


def test_nothing_to_sum(units: vkq.Device) -> None:
    layer = vkq.Linear(np.ones((33, 0), np.int8), 1.0, compute="float16", device=units)
    assert not layer(np.ones((40, 0), np.float32)).any()
    convolution = vkq.Conv2d(np.ones((33, 0, 3, 3), np.int8), 1.0, compute="float16", device=units)
    assert not convolution(np.ones((2, 0, 7, 8), np.float32)).any()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_the_kernels_read(device: vkq.Device, dtype: str) -> None:
    """The kernels read float16 vectors of 8 elements: 8 channels of one group, or 8 elements along k of
    one row."""
    # (images, groups, channels, pixels)
    x = np.random.default_rng(1).normal(size=(2, 2, 11, 3)).astype(dtype)
    tensor, b = vkq.Tensor.from_numpy(x, device), Builder(device)
    plan = b.plan(half_operands.halves(b, b.input(tensor.spec), 2, 2, 11, 3))
    got = run(plan, (tensor,)).numpy().view(np.float16).reshape(2, 2, 2, 3, 8)
    want = np.pad(x.astype(np.float16), ((0, 0), (0, 0), (0, 5), (0, 0))).reshape(2, 2, 2, 8, 3)
    np.testing.assert_array_equal(got, want.swapaxes(3, 4))


def test_units_that_compute_nothing_are_not_taken(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = strict_device
    emulated.emulate(device, monkeypatch, "16x16x16", form="f16", wrong=emulated.NOTHING)
    said = selftest.stages(device)["matrices_half"]()
    assert "matrices of 16x16x16 f16: " in said
    found = dataclasses.replace(selftest.report(device), failures={"matrices_half": said})
    monkeypatch.setattr(selftest, "report", lambda _: found)
    assert half_refusal(device) == said
    layer = vkq.Linear(np.ones((40, 64), np.int8), 1.0, compute="float16", device=device)
    explained = layer.explain((40, 64))
    assert "compute='float16' uses float32 on this device" in explained.reason
    assert not any("coopmat" in name for name in explained.variants)


def test_only_listed_shapes_are_used(any_device: vkq.Device) -> None:
    row, sizes = emulated.row("16x16x16", "f16"), {"minSubgroupSize": 32, "maxSubgroupSize": 32}
    for changes in ({"m": 4}, {"n": 32}, {"k": 64}, {"a": "f32"}, {"c": "f16"}, {"scope": "workgroup"}):
        other = dataclasses.replace(row, **changes)  # type: ignore[arg-type]
        found = doctored.capabilities(any_device, cooperative_matrices=(other,), **sizes)
        assert advertised_half(found) == ()
    assert "lists no" in str(
        lacking_half(
            doctored.capabilities(
                any_device, cooperative_matrices=(), **dict.fromkeys(emulated.FEATURES, True)
            )
        )
    )

    little = doctored.capabilities(
        any_device, cooperative_matrices=(row,), maxComputeSharedMemorySize=16384,
        **sizes, **dict.fromkeys(emulated.FEATURES, True),
    )  # fmt: skip
    assert lacking_half(little) == "maxComputeSharedMemorySize is 16384, needs 32768"


def test_what_does_not_go_with_it(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.ones((3, 8), np.int8)
    with pytest.raises(vkq.ArgumentError, match="compute is 'half'; it must be one of float32, float16"):
        vkq.Linear(w, 1.0, compute="half", device=any_device)
    with pytest.raises(vkq.ArgumentError, match="products of integers are exact"):
        vkq.Linear(w, 1.0, x_qparams=vkq.QParams(0.1), compute="float16", device=any_device)
    monkeypatch.setattr(any_device, "capabilities", doctored.capabilities(any_device))  # removes matrix units
    with pytest.raises(vkq.MethodError, match="matrix cannot be used"):
        vkq.Conv2d(np.ones((3, 2, 1, 1), np.int8), 1.0, method="matrix", device=any_device)
