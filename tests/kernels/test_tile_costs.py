"""Tests of the costs of matrix-unit tiles. The costs are measured with the tiles themselves, and decide
which tile is chosen."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import vkq
from vkq.check import compare, measuring, tile_costs
from vkq.check.awake import Awake
from vkq.check.tile_costs import NoCost, TimedTile, int8_tiles
from vkq.device import costs, tuner
from vkq.device.costs import INT8, SEED
from vkq.device.profiles import profile
from vkq.device.tuner import TILES, Measured
from vkq.kernels import matrix_tiles
from vkq.kernels.half_configs import FLOAT16, OperandKind
from vkq.kernels.matrix_tiles import tilings
from vkq.runtime.plan import Plan
from vkq.runtime.recording import Recording

from ..device.reported import reported
from . import emulated

TILE = "64x32"


def int8_tile() -> TimedTile:
    return next(tile for tile in int8_tiles() if tile.name == TILE)


@pytest.fixture
def small(matrices: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    """Return a device with two cores and with little work for each measurement."""
    c = matrices.capabilities
    told = dataclasses.replace(c, properties={**c.properties, "shaderSMCount": 2})
    monkeypatch.setattr(matrices, "capabilities", told)
    monkeypatch.setattr(tile_costs, "DEPTHS", (128, 256))
    monkeypatch.setattr(tile_costs, "LEAST_OF_TILE", 1)
    monkeypatch.setattr(tile_costs, "TILE_S", 0.0)
    return matrices


def test_a_step_is_the_difference_of_two_depths(small: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a step is computed from the times at two sizes of K. On the simulated clock, a call takes
    500 ns, and each element along K of each workgroup of the busiest core 3 ns."""
    asked: list[tuple[int, int, int]] = []

    def clock(device: object, tile: TimedTile, m: int, n: int, k: int, awake: Awake) -> float:
        asked.append((m, n, k))
        workgroups = -(-(m // 64) * (n // 32) // 2)
        return 500.0 + 3.0 * k * workgroups

    monkeypatch.setattr(tile_costs, "_nanoseconds", clock)
    assert int8_tile().cost(small, Awake(small)) == (96.0, 96.0)
    assert asked == [(64, 32, 256), (64, 32, 128), (256, 128, 256), (256, 128, 128)]
    monkeypatch.setattr(tile_costs, "_nanoseconds", lambda *_: 500.0)
    with pytest.raises(NoCost, match="cannot distinguish k = 128 from k = 256"):
        int8_tile().cost(small, Awake(small))


def test_a_slice_k_tile_and_one_without_a_loop_include_the_end_of_a_workgroup(
    matrices: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of a slice-K tile includes the sum of its subgroups at the end of a workgroup: it is the time
    of a second workgroup on a core, with WIDE_STEP elements along K. The cost of a tile without a loop is the
    time of a whole workgroup, without the start of the call. On the simulated clock, a call takes 500 ns,
    each workgroup of the busiest core 1,000 ns, and each of its elements along K 3 ns."""
    c = matrices.capabilities
    told = dataclasses.replace(c, properties={**c.properties, "shaderSMCount": 2})
    monkeypatch.setattr(matrices, "capabilities", told)

    def clock(device: object, tile: TimedTile, m: int, n: int, k: int, awake: Awake) -> float:
        rows, columns = tile.size
        return 500.0 + (1000 + 3 * k) * -(-(m // rows) * (n // columns) // 2)

    monkeypatch.setattr(tile_costs, "_nanoseconds", clock)
    (wide,) = (tile for tile in int8_tiles() if tile.step == matrix_tiles.WIDE_STEP)
    assert wide.cost(matrices, Awake(matrices)) == (3 * 512 + 1000 / 4, 3 * 512 + 1000 / 4)
    (short,) = (tile for tile in int8_tiles() if tile.name == "128x64_short")
    assert short.cost(matrices, Awake(matrices)) == (3 * 64 + 1000, 3 * 64 + 1000)


def test_the_child_measures_the_tile_and_no_other(small: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child process measures a repack, dot products and the tile of the table. It does not begin a
    tile that it was told to skip."""
    ran: list[str] = []
    run = Recording.run

    def noted(self: Recording) -> None:
        run(self)
        ran.append("run")

    monkeypatch.setattr(Recording, "run", noted)
    monkeypatch.setattr(measuring, "families", lambda: ())
    monkeypatch.setattr(measuring, "COMPILE_S", 600.0)
    monkeypatch.setattr(tile_costs.matrix_tiles, "tile_names", lambda: (TILE, "128x256"))
    monkeypatch.setattr(measuring, "choose_path", lambda device: type("Coopmat", (), {"path": "coopmat"}))
    said: list[dict[str, Any]] = []
    measuring.run(small, lambda **what: said.append(what), 600.0, {(TILES, "128x256")})
    assert [each["begin"] for each in said if "begin" in each] == [
        [TILES, n] for n in ("repack", "dot", TILE)
    ]
    repack, *ends = (each for each in said if "end" in each)
    assert min(repack["ns"]) > 0
    for end in ends:
        if "wrong" not in end:  # otherwise the clock is too coarse for so little work
            assert end["ns"][0] >= end["ns"][1] > 0
        else:
            assert "cannot distinguish" in end["wrong"]
    assert ran


def test_a_tile_that_computes_wrong_has_no_cost(small: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    int8_tile().verify(small)
    true = compare.Linear

    def wrong(w: Any, *rest: Any, **options: Any) -> Any:
        return true(
            w ^ np.where(np.arange(w.size).reshape(w.shape) == 5, 64, 0).astype(w.dtype), *rest, **options
        )

    monkeypatch.setattr(compare, "Linear", wrong)
    with pytest.raises(NoCost, match=r"64x32: [1-6][0-9]? of 2048 elements differ"):
        int8_tile().verify(small)


def test_tiles_of_float16_are_measured_too(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float16 tiles are measured with layers that run them. A kernel for few rows that would replace a tile
    is not measured as that tile."""
    emulated.emulate(strict_device, monkeypatch, "16x16x16", form="f16")
    monkeypatch.setattr(tile_costs, "DEPTHS", (64, 128))
    monkeypatch.setattr(tile_costs, "LEAST_OF_TILE", 1)
    monkeypatch.setattr(tile_costs, "TILE_S", 0.0)
    c, able = strict_device.capabilities, OperandKind.able
    told = dataclasses.replace(c, properties={**c.properties, "shaderSMCount": 1})
    monkeypatch.setattr(strict_device, "capabilities", told)
    monkeypatch.setattr(
        OperandKind, "able", lambda of, facts, forced=None: able(of, facts, forced or "32x32")
    )
    ran: list[str] = []
    true = tile_costs._require

    def required(plan: Plan, tile: TimedTile) -> None:
        ran.extend(plan.variants)
        true(plan, tile)

    monkeypatch.setattr(tile_costs, "_require", required)
    (tile,) = (tile for tile in tile_costs.float_tiles(strict_device) if tile.table == FLOAT16.cycles)
    assert tile.name == "32x32"
    tile.verify(strict_device)
    with contextlib.suppress(NoCost):  # a clock may be too coarse for so little work
        tile.cost(strict_device, Awake(strict_device))
    assert any("gemm_q8csw" in name and "32x32" in name for name in ran), ran
    monkeypatch.setattr(tile_costs, "_nanoseconds", lambda device, tile, m, n, k, awake: 100.0 + k * m)
    assert tile.cost(strict_device, Awake(strict_device)) == (32.0 * 32, 8.0 * 32)


def test_what_is_measured_is_in_the_seed_s_unit_and_decides() -> None:
    """Measured costs are converted to the unit of the seed costs, and decide the choice. Here the
    measured cost of 64x64 is a hundredth of its seed cost, so this tile is chosen. Tiles without a
    measurement keep their seed costs."""
    c = reported("nvidia-h200", device_id=0x2882)
    seed = SEED[INT8]
    found = {tile: (1e3 * seed[tile][0], 1e3 * seed[tile][1]) for tile in ("128x64", "128x128", "64x32")}
    found["64x64"] = (10.0 * seed["64x64"][0], 10.0 * seed["64x64"][1])
    table = costs.in_seed_units({INT8: found})[INT8]
    assert table["128x64"] == pytest.approx(seed["128x64"], rel=0.01)
    assert table["64x64"] == pytest.approx([0.01 * one for one in seed["64x64"]], rel=0.05)
    assert table["32x32_wide"] == seed["32x32_wide"]
    told = {TILES: Measured("64x64", found)}
    assert Measured.parse(json.loads(json.dumps(dataclasses.asdict(told[TILES])))) == told[TILES]
    known = profile(dataclasses.replace(c, choices=tuner.choices(told)))
    assert known.measured
    assert tilings(known, 784, 512, 1024)[0].tile == "64x64"
    assert tilings(profile(c), 784, 512, 1024)[0].tile != "64x64"
    for bad in ({"64x64": [1.0]}, {"no tile": [1.0, 1.0]}, {"64x64": [1.0, -1.0]}, []):
        with pytest.raises(ValueError, match="not a measurement"):
            Measured.parse({"taken": "64x64", "outcomes": bad})


def test_the_fastest_tiling_of_each_tile_comes_first() -> None:
    """So `vkq tune`, which tries six, reaches every kind of tile, and not six numbers of parts of one."""
    known = profile(reported("nvidia-h200"))
    found = tilings(known, 32, 768, 3072)
    tiles = {one.tile for one in found}
    assert {one.tile for one in found[: len(tiles)]} == tiles
    times = [one.cycles(known, 32, 768, 3072) for one in found]
    assert times[: len(tiles)] == sorted(times[: len(tiles)])
    assert times[len(tiles) :] == sorted(times[len(tiles) :])
    assert "32x32_wide" in [one.tile for one in found[:6]]


def test_a_new_tile_needs_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile that is only a value of the shader's axis has a seed cost. A device that is measured at first
    sight uses the tile. A device that comes with a file of costs uses the tile only if the file has its
    cost."""
    names = matrix_tiles.tile_names()
    monkeypatch.setattr(matrix_tiles, "tile_names", lambda: (*names, "64x128"))
    measured = dict.fromkeys(names, (10.0, 10.0)) | {"64x128": (0.1, 0.1)}
    c = reported("nvidia-h200")
    for facts, used in ((c, False), (reported("nvidia-h200", device_id=0x2882), True)):
        found = matrix_tiles.tilings.__wrapped__(profile(facts), 784, 512, 1024, summed=True)
        assert ("64x128" in [one.tile for one in found]) == used
    seen = {TILES: Measured("64x128", measured)}
    assert Measured.parse(json.loads(json.dumps(dataclasses.asdict(seen[TILES])))) == seen[TILES]
    known = profile(dataclasses.replace(c, choices=tuner.choices(seen)))
    assert matrix_tiles.tilings.__wrapped__(known, 784, 512, 1024, summed=True)[0].tile == "64x128"
