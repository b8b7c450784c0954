"""Tests of the choice of kernels for a layer outside a network. If matrix units do not read the layout of x,
vkq chooses between dot products, which read this layout, and a repack followed by matrix units."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
from tests.graph.test_layouts import Planned, network, plan_of
from tests.kernels import emulated
from vkq.check.tuning import choices
from vkq.device.costs import DOT_TILE, INT8, SEED
from vkq.device.profiles import Profile, profile
from vkq.device.tuner import TILES, Measured
from vkq.device.tuner import choices as measured_choices
from vkq.kernels.matrix_tiles import is_faster_as_given, tile_names
from vkq.layout.extent import BLOCKED, IMAGE, MATRIX, Spec
from vkq.select.path import Choice

from . import doctored

Q, Y = vkq.QParams(0.05, 3), vkq.QParams(0.7, -5)
SMALL, LARGE = (1, 32, 8, 8), (1, 2048, 8, 8)  # images whose products have a short k (32) and a long k (2048)
NS = 0.5  # nanoseconds for each cycle of the seed costs, on the simulated device


def measured(c: vkq.Capabilities, repack: float = 4000.0) -> vkq.Capabilities:
    """Return the capabilities after a measurement at first sight. In this measurement a step of dot
    products took 600 ns, and the repack of a small image took *repack* ns."""
    tiles: dict[str, Any] = {tile: tuple(NS * cycles for cycles in SEED[INT8][tile]) for tile in tile_names()}
    tiles |= {"dot": (600.0, 370.0), "repack": (repack, 600.0)}
    return dataclasses.replace(c, choices=measured_choices({TILES: Measured("64x64", tiles)}))


def unmeasured(c: vkq.Capabilities) -> vkq.Capabilities:
    """Return the capabilities of a device whose repack and dot products were not measured."""
    return dataclasses.replace(c, choices=(("as_given_cycles", SEED["as_given_cycles"]),))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Return a device with matrix units that can only plan."""
    monkeypatch.setattr(
        "vkq.schemes.int8.choose_path",
        lambda device, path: Choice("coopmat" if path == "auto" else path, "s8s8", "as the test says"),
    )
    doctored.report(monkeypatch)
    device = Planned("nvidia-h200")
    device.capabilities = measured(device.capabilities)
    return device


def layer_of(device: vkq.Device, shape: tuple[int, ...], **options: Any) -> Any:
    kind, window = (vkq.Linear, ()) if len(shape) == 2 else (vkq.Conv2d, (1, 1))
    weight = np.random.default_rng(5).integers(-128, 128, (16, shape[1], *window), dtype=np.int8)
    return kind(weight, 0.01, x_qparams=Q, y_qparams=Y, overflow="wrap", device=device, **options)


def repacks(layer: Any, shape: tuple[int, ...], layout: str) -> bool:
    """Return True if the layer's plan for x in *layout* repacks x. Check that the plan uses matrix units
    if and only if it repacks x, or x already has the layout of matrix units."""
    plan = layer.plan(Spec(shape, "int8", layout, Q))
    units = any("coopmat" in name for name in plan.variants)
    repack = any(name.startswith("repack") for name in plan.variants)
    assert units == (repack or layout == BLOCKED)
    return repack


@pytest.mark.parametrize(("small", "large"), [(SMALL, LARGE), ((64, 32), (64, 2048))])
def test_a_layer_alone_counts_the_repack(
    planned: Planned, small: tuple[int, ...], large: tuple[int, ...]
) -> None:
    """A small layer uses dot products without a repack of x, and a large layer repacks x for matrix units.
    The small layer repacks, too, if the repack takes no time, if the repack was not measured, or if the
    caller requests matrix units. If x has the layout of matrix units, they are used without a repack."""
    given = IMAGE if len(small) == 4 else MATRIX
    assert not repacks(layer_of(planned, small), small, given)
    assert repacks(layer_of(planned, large), large, given)
    assert repacks(layer_of(planned, small, path="coopmat"), small, given)
    assert not repacks(layer_of(planned, small), small, BLOCKED)
    assert layer_of(planned, small).input_layout(small) == BLOCKED
    for c in (measured(planned.capabilities, repack=1.0), unmeasured(planned.capabilities)):
        planned.capabilities = c
        assert repacks(layer_of(planned, small), small, given)
    planned.capabilities = Planned("nvidia-h200").capabilities  # its file has the time of a repack
    assert not repacks(layer_of(planned, small), small, given)


def test_tuning_compares_both(planned: Planned) -> None:
    """`vkq tune` begins with the kernels that a layer outside a network would choose. It also times the
    kernels for the other layout."""
    for shape, given in ((SMALL, IMAGE), (LARGE, IMAGE), ((64, 32), MATRIX), ((64, 2048), MATRIX)):
        layer, x = layer_of(planned, shape), Spec(shape, "int8", given, Q)
        names = [one.plan(x).variants for one in choices(layer, x)]
        assert names[0] == layer.plan(x).variants
        assert {any("coopmat" in name for name in variants) for variants in names} == {True, False}


@pytest.mark.parametrize("kind", ["resnet", "mobilenet_v2"])
def test_a_network_chooses_as_before(kind: str, planned: Planned, tmp_path: Path) -> None:
    """In a network, the dispatches do not depend on the times of a repack and of dot products."""
    graph, seen = network(kind, tmp_path, 1, 32), set()
    for repack in (1.0, 1e9):
        planned.capabilities = measured(planned.capabilities, repack)
        plan = plan_of(graph, planned)
        assert any("coopmat" in name for name in plan.variants)
        seen.add(plan.variants)
    assert len(seen) == 1


def test_the_rule_compares_times() -> None:
    """Dot products are chosen if they take less time than the repack and the product in the fastest tile of
    matrix units. The time of dot products grows with k, and with the rows if there are more workgroups than
    cores. The time of the repack grows with its bytes."""
    c = measured(Planned("nvidia-h200").capabilities)
    known = dataclasses.replace(profile(c), multiprocessors=10)

    def wins(rows: int, n: int, k: int, known: Profile = known) -> bool:
        return is_faster_as_given(known, rows, n, k)

    assert [wins(64, 64, k) for k in (16, 64, 2048)] == [True, True, False]
    assert [wins(tiles * DOT_TILE, 64, 64) for tiles in (1, 10, 1000)] == [True, True, False]
    dear = dataclasses.replace(known, as_given_cycles={**known.as_given_cycles, "repack": (0.0, 1e12)})
    assert [wins(64, 64, 2048, one) for one in (known, dear)] == [False, True]
    unknown = dataclasses.replace(known, as_given_cycles=SEED["as_given_cycles"])
    assert not wins(64, 64, 16, unknown)


def test_both_give_the_same_bits(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dot products of x as it is given return the bits of matrix units, and the result has x's layout."""
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    plain = strict_device.capabilities
    for shape in (SMALL, (40, 32)):
        x = np.random.default_rng(3).integers(-128, 128, shape).astype(np.int8)
        results = []
        for c in (plain, measured(plain)):
            monkeypatch.setattr(strict_device, "capabilities", c)
            given = vkq.Tensor.from_numpy(x, strict_device, qparams=Q)
            y = layer_of(strict_device, shape)(given)
            results.append(y.numpy())
        assert given.layout == y.layout
        assert y.layout != BLOCKED
        np.testing.assert_array_equal(*results)
