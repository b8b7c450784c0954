"""Tests of ``vkq check`` and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import vkq
from vkq import reference
from vkq.check import compare
from vkq.check.catalogue import check_of
from vkq.check.expected import Expected
from vkq.cli import main
from vkq.runtime.device import Device


def test_check_prints_json_with_a_summary(any_device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "linear[M=9,K=9,N=9]", "--device", any_device.name, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["mismatches"]) == (1, [])
    assert said["summary"]["cases"] == 21
    assert said["summary"]["mismatches"] == 0
    # 10 of the 21 cases run on every path; the other 11 have float activations, and so only one path
    assert said["summary"]["comparisons"] == 10 * len(said["summary"]["paths"]) + 11
    assert said["summary"]["refused_by_method"] == 0


def test_check_of_random_cases_alone(any_device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "--count", "7", "--seed", "3", "--device", any_device.name, "--path", "portable"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "7 cases on 1 path (portable), " in said
    assert ": 0 mismatches, " in said


def test_a_mismatch_exits_1_and_says_how_to_see_it_again(
    any_device: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    true = compare.Check.expected
    monkeypatch.setattr(compare.Check, "expected", lambda *arguments: Expected(true(*arguments).y ^ 1))
    words = ["check", "linear[M=9,K=9,N=9]/seed=2", "--device", any_device.name, "--path", "portable"]
    assert main(words) == 1
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
def test_debug_shows_what_the_shaders_print(
    driver: str, software_device: Device, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["check", "linear[M=5,K=9,N=6]/seed=0", "--device", driver, "--path", "portable", "--debug"])
        == 0
    )
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "linear[M=5,K=9,N=6]/seed=0 path=portable: equal"
    data = check_of("linear[M=5,K=9,N=6]/seed=0").data()
    # The trace shows the first 4x4 accumulators.
    acc = reference.linear_acc(data.x, data.w, data.x_q, data.bias)[:4, :4]
    assert [line.split("-> acc ")[1].split() for line in lines[1:5]] == [[str(v) for v in row] for row in acc]


def test_debug_without_a_compiler_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise vkq.CompileError("no usable GLSL compiler")

    monkeypatch.setattr("vkq.cli.check.find_compiler", none)
    assert main(["check", "linear[M=5,K=9,N=6]/seed=0", "--debug"]) == 2
    said = capsys.readouterr()
    assert ("no usable GLSL compiler" in said.err, said.out) == (True, "")


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--count", "-5"],
        ["check", "--count", "1e3"],
        ["check", "--count", "9" * 5000],
        ["check", "--seed", "-1"],
        ["check", "linear[M=1,K=1,N=1]/seed=²"],
        ["check", "linear[M=1,K=1,N=1]/seed=" + "9" * 300],
        ["check", "linear[M=1000000,K=1000000,N=1000000]"],
        ["check", "x" * 5000],
        ["doctor", "--times", "0"],
        ["doctor", "--times", "²"],
        ["bench", "seed", "--samples", "0"],
        ["bench", "seed", "--samples", "1000000000"],
        ["bench", "seed", "--time", "nan"],
        ["bench", "seed", "--time", "0"],
        ["bench", "seed", "--submission-ms", "-1"],
        ["bench", "seed", "--submission-ms", "inf"],
        ["bench", "linear[M=1000000,K=1000000,N=1000000]"],
        ["tune", "linear[M=1000000,K=1000000,N=1000000]"],
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_numbers_out_of_range_are_errors_of_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(words)
    except SystemExit as ended:  # argparse raises SystemExit
        code = ended.code  # type: ignore[assignment]
    assert code == 2
    said = capsys.readouterr().err
    assert "error: " in said
    assert len(said) < 2000


@pytest.mark.parametrize("which", ["²", "9" * 5000, "-1", "99"])
def test_a_device_that_there_is_not_exits_3(which: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["bench", "seed"], ["check"], ["doctor"]):
        assert main([*words, f"--device={which}"]) == 3
        assert "no device matches" in capsys.readouterr().err


def test_a_check_that_would_check_nothing_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkq.check.catalogue.select", lambda _: [])
    assert main(["check"]) == 2
    assert "no case is left to check" in capsys.readouterr().err


def test_check_integer(
    any_device: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["check", "integer", "--device", any_device.name]
    assert main([*words, "--count", "2", "--path", "transform"]) == 0
    assert "2 random integer correlations on transform: 0 mismatches" in capsys.readouterr().out
    assert main(words) == 2
    assert "--count is 0" in capsys.readouterr().err
    monkeypatch.setattr(reference.integer, "conv2d", lambda x, w, bias, p: np.zeros(p.y_shape))
    assert main([*words, "--count", "1", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["summary"]["mismatches"] == 1
    assert "transform" in said["summary"]["paths"]
    assert "seed 0: conv2d[" in said["mismatches"][0]
