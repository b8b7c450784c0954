"""Tests that a GPU's clock is raised before kernels are timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

import vkq
from vkq.check import awake
from vkq.check.awake import Awake, filled
from vkq.check.tuning import Trial


def test_the_product_runs_until_it_is_as_fast_as_before(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the simulated clock, a run takes 10 us at first and 9 us after the warm-up. Later the clock has
    fallen, and the fourth group of runs is fast again. CPU devices run nothing."""
    c, ran = any_device.capabilities, list[float]()

    def times() -> Iterator[float]:
        yield 10.0
        for slow in (40.0, 30.0, 20.0):
            yield from [slow] * awake.RUNS
        while True:
            yield 9.5

    def run(self: Trial) -> float:
        ran.append(next(clock))
        return ran[-1]

    monkeypatch.setattr(Trial, "run", run)
    Awake(any_device)()
    assert ran == []
    monkeypatch.setattr(any_device, "capabilities", dataclasses.replace(c, device_type="discrete"))
    monkeypatch.setattr(awake, "WARM_S", 0.0)
    monkeypatch.setattr(awake, "AGAIN_S", 600.0)
    clock = times()
    raised = Awake(any_device)
    assert ran == [], "no time to warm up"
    raised._best = next(clock)
    raised()
    assert len(ran) == 4 * awake.RUNS
    assert (ran[-1], raised._best) == (9.5, 9.5)
    raised()
    assert len(ran) == 5 * awake.RUNS, "the clock is still up"


def test_the_warm_up_has_a_time_limit(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    c = any_device.capabilities
    monkeypatch.setattr(any_device, "capabilities", dataclasses.replace(c, device_type="discrete"))
    monkeypatch.setattr(awake, "ROWS", 1)
    monkeypatch.setattr(awake, "WARM_S", 1e-3)
    monkeypatch.setattr(awake, "AGAIN_S", 1e-3)
    raised = Awake(any_device)
    assert 0 < raised._best < np.inf
    raised._best = 1e-9
    raised()


def test_a_filled_tensor_has_equal_elements(device: vkq.Device) -> None:
    assert (filled(device, (3, 5), "int8").numpy() == 0x11).all()
    halves = filled(device, (2, 7), "float16").numpy()
    np.testing.assert_array_equal(halves, np.full((2, 7), np.uint16(0x1111)).view(np.float16))
