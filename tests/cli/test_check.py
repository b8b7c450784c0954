"""``vkq check`` and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vkq import reference
from vkq.check import compare
from vkq.check.catalogue import check_of
from vkq.check.expected import Expected
from vkq.cli import main


def test_check_prints_json_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "linear[M=9,K=9,N=9]", "--device", "llvmpipe", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["mismatches"]) == (1, [])
    assert said["summary"]["cases"] == 12
    assert said["summary"]["mismatches"] == 0
    # of twelve, two are weight-only and have no path to choose
    assert said["summary"]["comparisons"] == 10 * len(said["summary"]["paths"]) + 2
    assert said["summary"]["refused_by_method"] == 0


def test_check_of_random_cases_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--count", "7", "--seed", "3", "--device", "llvmpipe", "--path", "portable"]) == 0
    said = capsys.readouterr().out
    assert "7 cases on 1 paths (portable), " in said
    assert ": 0 mismatches, " in said


def test_a_mismatch_exits_1_and_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    true = compare.Check.expected
    monkeypatch.setattr(compare.Check, "expected", lambda *arguments: Expected(true(*arguments).y ^ 1))
    assert main(["check", "linear[M=9,K=9,N=9]/seed=2", "--device", "llvmpipe", "--path", "portable"]) == 1
    said = capsys.readouterr().out
    assert "MISMATCH linear[M=9,K=9,N=9]/seed=2 path=portable: 81 of 81 elements differ" in said
    assert "again: vkq check 'linear[M=9,K=9,N=9]/seed=2' --path portable" in said


def test_list_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines)) > 300


def test_an_unknown_filter_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "frobnicate"]) == 2
    assert "no check matches 'frobnicate'" in capsys.readouterr().err


def test_without_a_device_it_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "linear[M=9,K=9,N=9]", "--device", "no such device"]) == 3
    assert "no device matches 'no such device'" in capsys.readouterr().err


@pytest.mark.parametrize("driver", ["llvmpipe", "SwiftShader"])
def test_debug_shows_what_the_shaders_print(driver: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["check", "linear[M=5,K=9,N=6]/seed=0", "--device", driver, "--path", "portable", "--debug"])
        == 0
    )
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "linear[M=5,K=9,N=6]/seed=0 path=portable: equal"
    data = check_of("linear[M=5,K=9,N=6]/seed=0").data()
    acc = reference.linear_acc(data.x, data.w, data.x_q, data.bias)[
        :4, :4
    ]  # the first block of the first invocation
    assert [line.split("-> acc ")[1].split() for line in lines[1:5]] == [[str(v) for v in row] for row in acc]
