"""Tuning measures what is exact, keeps the fastest, and prefers the default where the gain is noise."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from vkq.check import tuning
from vkq.check.catalogue import check_of
from vkq.check.tuning import Trial, winner
from vkq.cli import main
from vkq.runtime.device import Device
from vkq.runtime.program import Program
from vkq.select import tune
from vkq.select.tune import Setting
from vkq.shader.spec import Value, Variant

from ..select.test_tune import fresh  # noqa: F401  a fixture

A, B, C = Setting("4x8", 8, 8), Setting("8x8", 8, 8), Setting("4x4", 64, 1)
NAME = "linear[M=33,K=40,N=20]"


def test_the_fastest_final_setting_wins_if_it_is_worth_it() -> None:
    first = [Trial(A, 10.0), Trial(B, 5.0), Trial(C, 1.0)]
    assert winner([*first, Trial(A, 10.0, final=True), Trial(B, 8.0, final=True)], A) == B
    assert winner([*first, Trial(A, 10.0, final=True), Trial(B, 9.9, final=True)], A) == A  # noise
    assert winner([Trial(A, None, "wrong"), Trial(B, 99.0, final=True)], A) == B  # the default is out
    assert winner([], A) == A


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three settings, short samples, and one choice of kernels."""
    monkeypatch.setattr(tuning, "tuned_kernels", lambda *_: [tuning.KernelTrial({}, ("v",), 1.0)])
    monkeypatch.setattr(tune, "candidates", lambda facts: [A, B, C])
    monkeypatch.setattr(tuning, "SAMPLE_US", 100.0)


def test_every_setting_is_measured_and_the_best_again(device: Device, few: None) -> None:
    results = list(tuning.tuned(device, check_of(NAME), "portable"))
    assert {r.setting for r in results if not r.final} >= {A, B, C}
    assert all(r.time_us and r.time_us > 0 for r in results)
    assert any(r.final for r in results)


def test_every_setting_runs_a_program_of_its_own(
    software_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer keeps a plan for each forced setting; with one plan for all, every time is the first one's."""
    made: set[object] = set()
    program = Device.program

    def noted(
        self: Device, variant: Variant, constants: Mapping[str, Value], subgroup_size: int = 0
    ) -> Program:
        made.add((variant.name, *constants.items()))
        return program(self, variant, constants, subgroup_size)

    monkeypatch.setattr(Device, "program", noted)
    monkeypatch.setattr(tuning, "SAMPLE_US", 1.0)
    results = list(tuning.tuned(software_device, check_of(NAME), "portable"))
    settings = {result.setting for result in results}
    assert settings == {*tune.candidates(software_device.capabilities)}
    assert len(made) == len(settings) == 36
    assert not [result.error for result in results if result.error]


def test_without_timestamps_the_host_times(
    any_device: Device, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        any_device, "capabilities", dataclasses.replace(any_device.capabilities, timestamp_valid_bits=0)
    )
    assert all(r.time_us for r in tuning.tuned(any_device, check_of(NAME), "portable"))


def test_a_setting_that_is_not_exact_is_never_kept(
    any_device: Device, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = tuning.compare

    def compare(check: object, path: str, got: np.ndarray, want: object) -> object:
        calls.append(1)
        return true(check, path, got ^ (len(calls) == 2), want)  # type: ignore[arg-type]

    calls: list[int] = []
    monkeypatch.setattr(tuning, "compare", compare)
    results = list(tuning.tuned(any_device, check_of(NAME), "portable"))
    (wrong,) = [r for r in results if r.error]
    assert wrong.error == "660 of 660 elements differ"
    assert wrong.time_us is None
    assert not any(r.final for r in results if r.setting == wrong.setting)


def test_the_command_stores_the_winner(
    any_device: Device,
    few: None,
    fresh: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tune", NAME, "--device", any_device.name, "--path", "portable", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    (stored,) = tune._tuned.values()
    assert [str(setting) for setting in stored.values()] == [said["kept"]]
    assert len(list((fresh / "tune").iterdir())) == 1


def test_a_dry_run_stores_nothing_and_prints_a_table(
    any_device: Device,
    few: None,
    fresh: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tune", NAME, "--device", any_device.name, "--path", "portable", "--dry-run"]) == 0
    assert "(default)" in capsys.readouterr().out
    assert not (fresh / "tune").exists()
