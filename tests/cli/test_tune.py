"""Tests of the output and the stored choices of `vkq tune`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import vkq
from vkq.check import catalogue, tuning
from vkq.check.tuning import Trial
from vkq.cli import main, tune
from vkq.device import tuner
from vkq.device.costs import SEED, Tuned
from vkq.graph.executable import Executable
from vkq.onnx.session import InferenceSession
from vkq.select import registers

from ..device.test_tuner import NAME, STAGED, fresh  # noqa: F401  a fixture
from .test_model import folder  # noqa: F401  a fixture


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
    what = "kept" if kept else "best (not kept, as --dry-run asks)"
    assert f"\n  {what}: matrix product: 32x32 through shared memory, 2.00x the default" in said
    found = tuner.stored(software_device.capabilities).problems
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
    assert "gives right results: 3 of 9 differ" in capsys.readouterr().err


def test_regret_is_of_the_choice_and_of_the_tuned_one(
    fresh: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The regret (how much slower than the fastest candidate) is printed for the default choice and for the
    tuned choice. Tuning does not try the fastest of the eight candidates, which is the last one."""
    others = [trial({"k": str(i)}, 9.0 - i) for i in range(6)]
    called(monkeypatch, [SLOW, *others, trial({"k": "x"}, 2.5)])
    assert main(["tune", NAME, "linear[M=2,K=8,N=8]", "--device", "llvmpipe", "--regret"]) == 0
    said = capsys.readouterr().out
    assert "regret 300.0%, tuned 100.0%, of 8 choices" in said
    assert "regret of the choice: 300.0% geometric mean, 300.0% at worst, 2 shapes" in said
    assert main(["tune", NAME, "--device", "llvmpipe", "--regret", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["regret"], one["regret_tuned"], len(one["trials"])) == (3.0, 1.0, 8)


def test_a_list_is_its_problems(any_device: vkq.Device, capsys: pytest.CaptureFixture[str]) -> None:
    """The name of a list stands for its problems, each with its scheme. The list named "regret" has 40
    problems."""
    found = tune._names(any_device, "regret")
    assert len(set(found)) == 40
    assert "linear[M=1,K=4096,N=4096]/scheme=q4gsw" in found
    assert {catalogue.check_of(name).op for name in found} == {"linear", "conv2d"}
    assert main(["tune", "regretz", "--device", "llvmpipe"]) == 2
    assert "regret" in capsys.readouterr().err


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


def test_in_a_narrow_terminal_shaders_have_a_line_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [
        {"name": name, "time_us": 20.0, "error": "", "final": True, "variants": ["a" * 40, "b" * 20]}
        for name in ("default", "tile in registers: 4x8")
    ]
    told = {"problem": "p", "path": "auto", "device": "d", "speedup": 1.0, "kept": "default"}
    for width, lines in ((80, 6), (120, 4)):
        monkeypatch.setattr(tune, "columns", lambda width=width: width)
        tune._show({**told, "trials": trials})
        said = capsys.readouterr().out.splitlines()
        assert len(said) == lines
        assert max(map(len, said)) <= width


def test_a_model_is_tuned_by_the_shapes_of_its_layers(
    software_device: vkq.Device,
    fresh: Path,  # noqa: F811
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`vkq tune` tunes the shapes of a model's layers, and the layers then use the stored choices."""
    model, device = str(folder / "int8.onnx"), software_device

    def variants() -> list[str]:
        session = InferenceSession(model, device)
        return list(Executable(session.lowered(session.trial_shapes()), device, {}).plan.variants)

    before = variants()
    called(monkeypatch, [SLOW, trial({registers.KIND: "8x8, workgroup 16x4"}, 5.0)])
    assert main(["tune", model, "--device", "llvmpipe"]) == 0
    kept = tuner.stored(device.capabilities).problems
    assert len(kept) > 3
    assert {name.partition("[")[0] for name in kept} == {"conv2d", "linear"}
    assert {name.split()[-1] for name in kept} <= {"q8ta_q8csw_q8to", "q8ta_q8csw"}
    after = variants()
    assert before != after
    assert all(name.endswith("8x8") for name in after if "gemm" in name)


def test_an_export_is_a_file_that_may_ship(
    software_device: vkq.Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, costs = tmp_path / "device.json", {"half_tile_cycles": SEED["half_tile_cycles"]}
    monkeypatch.setattr(tune, "measured_costs", lambda *_: costs)
    assert main(["tune", "--export", str(file), "--device", "llvmpipe"]) == 0
    assert f"{len(SEED['half_tile_cycles'])} tiles of llvmpipe" in capsys.readouterr().out
    found = Tuned.parse(json.loads(file.read_text()))
    assert (found.devices, found.costs) == (("10005-0000",), costs)
    assert found.driver == software_device.capabilities.driver
    assert main(["tune", "--device", "llvmpipe"]) == 2
    assert "a PROBLEM or --export is needed" in capsys.readouterr().err
