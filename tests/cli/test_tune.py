"""What `vkq tune` prints, and keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import vkq
from vkq.check import tuning
from vkq.check.tuning import Trial
from vkq.cli import main, tune
from vkq.select import tuner

from ..select.test_tuner import NAME, STAGED, fresh  # noqa: F401  a fixture


def trial(choice: Mapping[str, str], time_us: float | None, error: str = "", final: bool = True) -> Trial:
    return Trial(choice, ("v",), time_us, error, final)


SLOW, FAST, WRONG = trial({}, 10.0), trial(STAGED, 5.0), trial({"a": "b"}, None, "3 of 9 differ")


def called(monkeypatch: pytest.MonkeyPatch, found: list[Trial]) -> None:
    monkeypatch.setattr(tuning, "trials", lambda *_, **__: found)


@pytest.mark.parametrize(("options", "kept"), [(["--dry-run"], {}), ([], STAGED)])
def test_the_best_is_kept(
    options: list[str],
    kept: Mapping[str, str],
    software_device: vkq.Device,
    fresh: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    called(monkeypatch, [SLOW, FAST])
    name = f"{NAME}/seed=1,scheme=q8ta_q8csw"
    assert main(["tune", name, "--device", "llvmpipe", "--path", "portable", *options]) == 0
    said = capsys.readouterr().out
    assert " * matrix product: 32x32 through shared memory" in said
    assert "2.00x the default" in said
    found = tuner.stored(software_device.capabilities)
    assert found == ({f"{NAME} q8ta_q8csw": kept} if kept else {})


def test_what_is_wrong_fails_the_command(
    fresh: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    called(monkeypatch, [SLOW, WRONG])
    assert main(["tune", NAME, "--device", "llvmpipe", "--dry-run"]) == 1
    assert "a: b" in (said := capsys.readouterr().out)
    assert "3 of 9 differ" in said
    called(monkeypatch, [WRONG])
    assert main(["tune", NAME, "--device", "llvmpipe", "--regret"]) == 2
    assert "no choice is right: 3 of 9 differ" in capsys.readouterr().err


def test_regret_is_of_the_choice_and_of_the_tuned_one(
    fresh: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The best is the last of eight, which a tuned problem does not try."""
    others = [trial({"k": str(i)}, 9.0 - i) for i in range(6)]
    called(monkeypatch, [SLOW, *others, trial({"k": "x"}, 2.5)])
    assert main(["tune", NAME, NAME, "--device", "llvmpipe", "--regret"]) == 0
    said = capsys.readouterr().out
    assert "regret 300.0%, tuned 100.0%, of 8 choices" in said
    assert "regret of the choice: 300.0% geometric mean, 300.0% at worst, 2 shapes" in said
    assert main(["tune", NAME, "--device", "llvmpipe", "--regret", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["regret"], one["regret_tuned"], len(one["trials"])) == (3.0, 1.0, 8)


def test_slow_ones_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    slower: list[dict[str, Any]] = [
        {"name": f"slow {i:02}", "time_us": 20.0 + i, "error": "", "final": False, "variants": ["v"]}
        for i in range(12)
    ]
    bad = {"name": "bad", "time_us": None, "error": "no", "final": False, "variants": []}
    told = {"problem": "p", "path": "auto", "device": "d", "speedup": 3.0, "kept": "slow 11"}
    tune._show({**told, "trials": [bad, *slower]})
    said = capsys.readouterr().out
    assert [f"slow {i:02}" in said for i in range(12)] == [True] * 8 + [False] * 3 + [True]
    assert "13 choices (--json has all)" in said
    assert "bad" in said
    assert " * slow 11" in said
