"""Tests of core counts, which drivers report or the probe measures, and of tile costs, which come from the
seed, a shipped file or a measurement."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from vkq.device import costs, verdict
from vkq.device.capabilities import Capabilities
from vkq.device.cores import INTEL, XE_CORES, told_cores
from vkq.device.profiles import profile
from vkq.device.structs import PROPERTIES
from vkq.device.tuner import wanted
from vkq.kernels.matrix_tiles import tilings

from .reported import NAMES, reported

H200 = reported("nvidia-h200")
GEFORCE = dataclasses.replace(H200, device_id=0x2882)  # 0x2882 is the device id of an RTX 4060


def told(c: Capabilities, **properties: int) -> Capabilities:
    return dataclasses.replace(c, properties={**c.properties, **properties})


@pytest.mark.parametrize("name", ["shaderSMCount", "activeComputeUnitCount", "shaderCoreCount"])
def test_what_a_driver_tells_is_taken(name: str) -> None:
    assert name in {field for each in PROPERTIES for field in each.fields}
    c = told(GEFORCE, **{name: 24})
    assert (told_cores(c), profile(c).multiprocessors) == (24, 24)


def test_intel_is_known_by_its_id() -> None:
    for device, cores in XE_CORES.items():
        c = dataclasses.replace(GEFORCE, vendor_id=INTEL, device_id=device)
        assert profile(c).multiprocessors == cores
    assert told_cores(dataclasses.replace(GEFORCE, device_id=next(iter(XE_CORES)))) is None


def test_a_device_that_tells_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = verdict.Verdict({}, False, {}, "", True, cores=24)
    assert verdict.Verdict.parse(json.loads(json.dumps(dataclasses.asdict(found)))) == found
    monkeypatch.setattr(verdict, "_reports", {GEFORCE.key: found})
    monkeypatch.setenv("VKQ_TUNE", "off")  # turns off measured kernels; measured core counts are still used
    assert profile(verdict.with_choices(GEFORCE)).multiprocessors == 24
    assert not profile(verdict.with_choices(GEFORCE)).measured
    assert profile(verdict.with_choices(told(GEFORCE, shaderSMCount=30))).multiprocessors == 30
    for bad in (0, -1, 2.5, True, "24"):
        with pytest.raises(ValueError, match="wrong type"):
            verdict.Verdict.parse(dataclasses.asdict(found) | {"cores": bad})


def test_no_device_is_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The costs in a shipped file apply only to the devices of that file. Only these devices need no
    measurement."""
    monkeypatch.delenv("VKQ_TUNE", raising=False)
    h100 = dataclasses.replace(H200, device_id=0x2330)
    for c in (H200, h100):
        assert (profile(c).multiprocessors, wanted(c)) == (132, False)
    assert profile(told(h100, shaderSMCount=114)).multiprocessors == 114
    others = [reported(name) for name in NAMES if name != "nvidia-h200"]
    for c in (GEFORCE, *others):
        assert profile(c).multiprocessors != 132
        assert profile(c).matrix_tile_cycles == costs.SEED["matrix_tile_cycles"]
    assert wanted(GEFORCE)
    assert profile(GEFORCE).straight_tile_cycles
    assert not profile(reported("radv-gfx1100")).straight_tile_cycles


def test_fewer_cores_take_larger_tiles() -> None:
    """A device with few cores uses larger tiles, which read operands less often. Few workgroups fill the
    device, so it needs no split-K."""
    small, large = (profile(told(GEFORCE, shaderSMCount=cores)) for cores in (8, 128))
    for m, n, k in ((196, 256, 2304), (784, 512, 1024), (3136, 256, 576)):
        few, many = (tilings(known, m, n, k)[0] for known in (small, large))
        workgroups = [tiling.tiles(m, n) * tiling.parts for tiling in (few, many)]
        assert workgroups[0] <= workgroups[1]
        assert small.multiprocessors <= 2 * workgroups[0], "it is full"


def test_without_its_file_a_device_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(costs.VARIABLE, costs.FRESH)
    assert costs.shipped.__wrapped__() == {}
    monkeypatch.delenv(costs.VARIABLE)
    assert costs.shipped.__wrapped__().keys() == {"10de-2335", "10de-2330"}


def test_every_file_says_whom_it_is_for() -> None:
    for path in costs.FOLDER.glob("*.json"):
        one = costs.Tuned.parse(json.loads(path.read_text()))
        assert path.stem == one.devices[0]
        assert one.costs.keys() <= costs.SEED.keys()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda one: [], "its keys"),
        (lambda one: one | {"more": 1}, "its keys"),
        (lambda one: one | {"cores": 0}, "at least 1"),
        (lambda one: one | {"devices": "10de-2335"}, "a list"),
        (lambda one: one | {"costs": {"cycles": {}}}, "not a mapping of cost tables"),
        (lambda one: one | {"costs": {"matrix_tile_cycles": [1, 2]}}, "is not a mapping"),
        (lambda one: one | {"costs": {"matrix_tile_cycles": {"64x64": [1]}}}, "must have 2 numbers"),
        (lambda one: one | {"costs": {"matrix_tile_cycles": {"64x64": [1, -1]}}}, "64x64 is -1"),
        (lambda one: one | {"costs": {"matrix_gathered_once": True}}, "matrix_gathered_once is True"),
    ],
)
def test_a_file_of_another_form_is_refused(damage: Callable[[Any], Any], message: str) -> None:
    good = json.loads((costs.FOLDER / "10de-2335.json").read_text())
    with pytest.raises(ValueError, match=message):
        costs.Tuned.parse(damage(good))
