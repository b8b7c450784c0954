"""Tests of the command ``vkq`` as a whole: help, misspelled names, completion, files that cannot be written,
reports."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest

import vkq
from vkq import cli
from vkq.cli.common import counted, folded
from vkq.errors import did_you_mean


def test_no_command_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["shaders"]):
        assert cli.main(words) == 0
        said = capsys.readouterr().out
        assert said.startswith("usage: vkq")
        assert "commands:" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["benhc"], "did you mean 'bench'?"),
        (["bench", "resnet5"], "did you mean 'resnet50'?"),
        (["bench", "lineer[M=1,K=2,N=3]"], "did you mean 'linear'?"),
        (["check", "--pth", "portable"], "unrecognized arguments: --pth; did you mean '--path'?"),
        (["check", "--path", "portabel"], "did you mean 'portable'?"),
        (["shaders", "lst"], "did you mean 'list'?"),
        (["shaders", "list", "sotfmax_q8__row"], "did you mean 'softmax_q8__row'?"),
        (["bench", "linear[M=1,K=2]"], "missing: N; linear takes M, K, N"),
        (["bench", "linear[M=1,M=2,K=3,N=1,Z=2]"], "unknown: Z; written twice: M; linear"),
    ],
)
def test_what_may_have_been_meant_is_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):  # argparse raises SystemExit after the error message
        assert cli.main(words) == 2
    assert said in capsys.readouterr().err


def test_nothing_is_guessed_from_afar() -> None:
    assert did_you_mean("xyzzy", ["bench", "check"]) == ""
    assert did_you_mean("b" * 100_000, ["bench"]) == ""


def test_linear_names_the_shaders_of_matrix_products(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["shaders", "list", "linear"]) == 0
    assert {"gemm", "gemv"} <= {line.partition("_")[0] for line in capsys.readouterr().out.splitlines()}


def test_shaders_check_without_a_compiler_says_so_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise vkq.CompileError("no compiler")

    monkeypatch.setattr("vkq.cli.shaders.find_compiler", none)
    assert cli.main(["shaders", "check", "softmax"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "vkq: error: no compiler\n")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    said = capsys.readouterr().out
    for word in ("bench", "doctor", "--fail-above", "stats"):
        assert word in said


@pytest.mark.parametrize("option", ["--json", "--csv", "--md", "--plot"])
def test_files_that_cannot_be_written_are_refused_first(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target, said in ((tmp_path, "is a folder"), (tmp_path / "no" / "x.svg", "there is no folder")):
        with pytest.raises(SystemExit):
            cli.main(["bench", "linear[M=1,K=2,N=3]", option, str(target)])
        assert said in capsys.readouterr().err
    assert cli.main(["bench", "linear[M=1,K=2,N=3]", "--plot", str(tmp_path / "x.txt")]) == 2
    assert "has no suffix that says what to write" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file is named in words, without the system's error number."""
    assert cli.main(["match", "nothing.png", "b.png"]) == 2
    assert cli.main(["plot", "nothing.json", "-o", "x.png"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "vkq: error: nothing.png: No such file or directory"
    assert second.startswith("vkq: error: nothing.json cannot be read as JSON: No such file or directory; ")


def test_words() -> None:
    assert [counted(n, "path") for n in (0, 1, 2)] == ["0 paths", "1 path", "2 paths"]
    assert counted(2, "mismatch", "mismatches") == "2 mismatches"
    lines = folded("   kernels        " + "word " * 60, 18, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith(" " * 18 + "word")
    assert folded("word " * 60, 3) == "word " * 60  # in a pipe, lines are not wrapped


def test_a_report_holds_everything_as_json(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    any_device: vkq.Device,
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = tmp_path / "few.yaml"
    listed.write_text(
        'summary: "x"\nnetwork: Two\ncases:\n'
        '  - {case: "linear[M=2,K=8,N=8]", times: 2, reason: "</script><b>"}\n'
    )
    monkeypatch.setattr("vkq.cli.bench.ceilings.measure", lambda device, say: {"dot_s8s8": 2.0, "copy": 1.0})
    monkeypatch.setattr("vkq.cli.report.TIMES", 1)
    monkeypatch.setattr("vkq.check.works.LARGE", ())
    monkeypatch.setattr("vkq.probe.selftest.probe_again", vkq.probe.selftest.report_of)
    target = tmp_path / "report.html"
    words = ["report", "-o", str(target), "--list", str(listed), "--list", "linear[M=1,K=8,N=8]"]
    words += ["--count", "3", "--time", "0.001"]
    assert cli.main([*words, "--device", any_device.name]) == 0
    assert "healthy; attach it" in capsys.readouterr().out
    text = target.read_text()
    inside = re.search(r'<script type="application/json" id="vkq-report">(.*?)</script>', text, re.DOTALL)
    assert inside is not None
    found = json.loads(inside[1])
    assert found["check"]["summary"]["cases"] == 3
    assert found["doctor"]["healthy"]
    assert found["bench"]["seconds"] > 0
    rows, totals = found["bench"]["rows"], found["bench"]["totals"]
    assert {row["case"] for row in rows} == {"linear[M=2,K=8,N=8]", "linear[M=1,K=8,N=8]"}
    assert {(one["network"], one["layers"], one["missing"]) for one in totals} == {("Two", 2, 0)}
    assert "total    Two, 2 layers" in text
    assert any(one["capabilities"]["name"] == any_device.name for one in found["devices"]["devices"])
    assert "<svg" in text
    assert not re.search(r'(src|href)="[^#]', text), "nothing is fetched from elsewhere"


def test_bench_says_which_of_how_many(
    monkeypatch: pytest.MonkeyPatch, any_device: vkq.Device, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    names = ["linear[M=1,K=2,N=3]", "linear[M=2,K=8,N=8]"]
    words = ["bench", *names, "--no-ceilings", "--time", "0.001", "--device", any_device.name]
    assert cli.main([*words, "--clock", "gpu", "--path", "portable"]) == 0
    said = re.findall(r"\d/\d linear[^\r\x1b]*", capsys.readouterr().err)
    assert [s for s in said if "reference" in s] == [
        f"{n}/2 {name}: reference" for n, name in enumerate(names, 1)
    ]


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.devices, "run", interrupted)
    assert cli.main(["devices"]) == 130
    assert capsys.readouterr().err == "vkq: interrupted\n"


def test_inputs_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command refuses to write a file that it reads, also under another name, and does not begin."""
    file, link = tmp_path / "a.json", tmp_path / "link"
    file.write_text("kept")
    link.symlink_to(file)
    read, written = str(file), str(link)
    for words in (
        ["export", read, "-o", written], ["run", read, "-o", read], ["plot", read, "-o", written],
        ["run", "m", "-i", f"x={read}", "-o", read], ["match", "i", "t", read, "-o", read],
        ["match", read, "t", "-o", written], ["compare-layers", "m", read, "-i", "s", "--json", read],
        ["bench", read, "--json", written], ["tune", read, "--export", written],
        ["quantize", "m", "-c", f"x={read}", "-o", read],
    ):  # fmt: skip
        assert cli.main(words) == 2, words
        assert "is an input of this command, too; name another file" in capsys.readouterr().err
    assert file.read_text() == "kept"
