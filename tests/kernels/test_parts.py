"""Tests of products of float32 values on bfloat16 matrix units: each value is split into three bfloat16
parts (bf16x3). If VKQ_TEST_DEVICE names a GPU with matrix units, the shaders run unchanged; software
drivers run emulated matrices (emulated.py)."""

import dataclasses

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from vkq.kernels import half, half_configs, half_operands
from vkq.probe import selftest
from vkq.probe.matrices import BRAIN
from vkq.problem.names import parse
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run
from vkq.select.path import half_refusal
from vkq.shader.catalog import catalog

from . import emulated
from .matrix_layers import CONVOLUTIONS, only

# M, N and K do not fill the tiles; one K is a multiple of 8, the other is not.
PRODUCTS = ("linear[M=131,K=37,N=141]", "linear[M=33,K=264,N=36]")
TILES = catalog().shaders[half_configs.PARTS_OF_FLOAT32.product].axes["tile"]
EVERY = [(tile, names[i % 2]) for i, tile in enumerate(TILES) for names in (PRODUCTS, CONVOLUTIONS)]


@pytest.fixture
def units(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    monkeypatch.setattr(half, "LEAST_MACS", dict.fromkeys(half.LEAST_MACS, 0))
    if half_refusal(strict_device, BRAIN):
        emulated.emulate(strict_device, monkeypatch, "16x16x16", form="bf16")
    return strict_device


def check(device: vkq.Device, name: str) -> None:
    problem, rng = parse(name), np.random.default_rng(len(name))
    data = random_data(problem, rng, "int8", "int8", w_zero_points="channel")
    x = rng.normal(size=problem.x_shape).astype(np.float32)
    kind = vkq.Linear if name.startswith("linear") else vkq.Conv2d
    layer = kind(
        data.w,
        data.w_scale,
        w_zero_point=data.w_zero_point,
        bias=data.float_bias,
        device=device,
        **data.options,
    )
    assert layer.scheme == "q8csw"
    assert "parts_coopmat" in layer.explain(problem.x_shape).variants[-1]
    assert data.expected_sum(x, None, "float32").mismatch(layer(x)) is None


@pytest.mark.parametrize(("tile", "name"), EVERY)
def test_every_tile(units: vkq.Device, tile: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, tile)
    check(units, name)


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_k(units: vkq.Device, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "32x64", parts)
    check(units, PRODUCTS[1])


def test_extremes_and_replays(units: vkq.Device) -> None:
    rng = np.random.default_rng(5)
    w, x = rng.integers(-127, 128, (36, 72)).astype(np.int8), rng.normal(size=(33, 72)).astype(np.float32)
    w[:, 9], w[1] = np.abs(w[:, 9]) % 127 + 1, 0
    x[2, 5], x[3, 9], x[4, 9], x[5], x[6] = np.nan, np.inf, -np.inf, 1e-36, 3e38 / 127 / 128
    x[7, ::2], x[8, ::3] = 1e30, 1e-30
    layer = vkq.Linear(w, 1e-3, device=units)
    tensor = vkq.Tensor.from_numpy(x, units)
    with units.record() as recording:
        y = layer(tensor)
    recording.run()
    got = y.numpy().astype(np.float64)
    assert np.isnan(got[2]).all()
    assert np.isposinf(got[3, 2:]).all()
    assert np.isneginf(got[4, 2:]).all()
    assert np.isnan(got[3:5, 1]).all()  # infinity times a weight of zero
    finite = [row for row in range(33) if row not in (2, 3, 4)]
    terms = x[finite, None].astype(np.float64) * w * float(np.float32(1e-3))
    bound = (72 + 4) * 2.0**-24 * np.abs(terms).sum(-1) + 2.0**-122  # a device may flush parts below 2^-126
    assert (np.abs(got[finite] - terms.sum(-1)) <= bound).all()
    first = y.numpy()
    for _ in range(emulated.REPLAYS):
        recording.run()
        assert y.numpy().tobytes() == first.tobytes()


def test_nothing_to_sum(units: vkq.Device) -> None:
    layer = vkq.Linear(np.ones((33, 0), np.int8), 1.0, device=units)
    assert not layer(np.ones((40, 0), np.float32)).any()
    convolution = vkq.Conv2d(np.ones((33, 0, 3, 3), np.int8), 1.0, device=units)
    assert not convolution(np.ones((2, 0, 7, 8), np.float32)).any()


@pytest.mark.parametrize("of", ["images", "rows"])
def test_parts_are_the_number(device: vkq.Device, of: str) -> None:
    """The three bfloat16 parts of a value add up to the value. Parts are stored in vectors of 8 (channels
    of a group, or k of a row), the smallest part first."""
    # (images, groups, channels, pixels)
    x = np.random.default_rng(1).normal(size=(2, 2, 11, 3)).astype(np.float32)
    x[0, 0, :7, 0] = 1e30, 3.4028235e38, 2.0**-100, -1.0, 0.0, np.inf, -np.inf
    given = x if of == "images" else np.ascontiguousarray(x.reshape(44, 3).T)
    tensor, b = vkq.Tensor.from_numpy(given, device), Builder(device)
    shape = (2, 2, 11, 3) if of == "images" else (1, 1, 44, 3)
    plan = b.plan(half_operands.parts_of(b, b.input(tensor.spec), *shape, of))
    parts = run(plan, (tensor,)).numpy().view(np.uint16).astype(np.uint32) << 16
    images, groups, channels, pixels = shape
    runs = -(-channels // 8)
    got = parts.view(np.float32).astype(np.float64).reshape(3, images, groups, runs, pixels, 8).sum(0)
    want = np.pad(x.reshape(shape), ((0, 0), (0, 0), (0, 8 * runs - channels), (0, 0)))
    np.testing.assert_array_equal(got, want.reshape(images, groups, runs, 8, pixels).swapaxes(3, 4))


def test_no_number_stays_none(device: vkq.Device) -> None:
    x = np.array([[0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x7F80FFFF]], np.uint32).view(np.float32)
    tensor, b = vkq.Tensor.from_numpy(x, device), Builder(device)
    plan = b.plan(half_operands.parts_of(b, b.input(tensor.spec), 1, 1, 4, 1, "rows"))
    parts = (
        (run(plan, (tensor,)).numpy().view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(3, 8)
    )
    assert np.isnan(parts[2, :4]).all()
    assert not parts[:2].any()


def test_units_that_compute_nothing_are_not_taken(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = strict_device
    monkeypatch.setattr(half, "LEAST_MACS", dict.fromkeys(half.LEAST_MACS, 0))
    emulated.emulate(device, monkeypatch, "16x16x16", form="bf16", wrong=emulated.NOTHING)
    said = selftest.stages(device)["matrices_brain"]()
    assert "matrices of 16x16x16 bf16: " in said
    found = dataclasses.replace(selftest.report(device), failures={"matrices_brain": said})
    monkeypatch.setattr(selftest, "report", lambda _: found)
    layer = vkq.Linear(np.ones((40, 64), np.int8), 1.0, device=device)
    assert not any("coopmat" in name for name in layer.explain((40, 64)).variants)


def test_the_self_test(units: vkq.Device) -> None:
    assert selftest.stages(units)["matrices_brain"]() is None
