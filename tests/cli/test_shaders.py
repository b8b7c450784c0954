"""Tests of `vkq shaders` on a sample folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shader.sample import GLSL, write_folder
from vkq import cli
from vkq.cli import shaders
from vkq.cli.common import progress
from vkq.shader.catalog import load_catalog


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path / "cache"))
    return use(write_folder(tmp_path), monkeypatch)


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small = load_catalog(folder)
    monkeypatch.setattr(shaders, "catalog", lambda: small)
    monkeypatch.setattr(shaders, "shaders_folder", lambda: folder)
    return folder


def test_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["shaders", "list", "two"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "scale__plain:f32.two  y = x * factor, for the tests",
        "scale__plain:i32.two  y = x * factor, for the tests",
    ]


def test_list_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["shaders", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found] == [
        f"scale__plain:{o}.{t}" for o in ("f32", "i32") for t in ("one", "two")
    ]
    assert found[1]["defines"] == {"EXTRA": 3, "OUT": 0, "TILE": 2}
    assert found[1]["bindings"][0]["layout"] == "kPackedInt8_4C"


def test_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["shaders", "show", "scale__plain:i32.two"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "axes: out=i32, tile=two" in lines
    assert "requires: maxComputeSharedMemorySize=20000" in lines
    assert any(
        line.startswith("  number=1, name=y, access=write, type=int, optional=False") for line in lines
    )
    assert "  LOCAL_X: id=0, type=uint, default=16, overridden=True" in lines
    assert any(line.startswith("spirv: size_bytes=") and "local_size=[16, 1, 1]" in line for line in lines)


def test_show_takes_a_pattern_that_is_unique(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["shaders", "show", "i32.one"]) == 0
    assert capsys.readouterr().out.startswith("name: scale__plain:i32.one\n")
    assert cli.main(["shaders", "show", "i32"]) == 2
    assert "2 variants match 'i32'; name one of them" in capsys.readouterr().err


def test_build(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["shaders", "build", "f32", "--output", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out").glob("*.spv"))) == 2
    assert capsys.readouterr().out.startswith("2 variants in 2 modules, ")
    assert cli.main(["shaders", "build"]) == 0
    assert len(list((tmp_path / "cache" / "spirv").glob("*.spv"))) == 4


def test_check(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["shaders", "check"]) == 0
    assert capsys.readouterr().out == "4 variants in 4 modules checked, 0 problems\n"
    use(write_folder(tmp_path, glsl=GLSL.replace("roundEven", "round").replace("readonly", "")), monkeypatch)
    assert cli.main(["shaders", "check", "one"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("scale/scale.comp:25: round()")
    assert "binding 0 ('x') is read_write in the GLSL" in lines[1]
    assert lines[-1] == "2 variants in 2 modules checked, 3 problems"


def test_errors_are_one_line_and_exit_code_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["shaders", "list", "none"]) == 2
    error = capsys.readouterr().err
    assert error == "vkq: error: no shader variant matches 'none'; the shaders are: scale__plain\n"


@pytest.mark.parametrize("command", ["list", "show", "build", "check"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["shaders", command, "--help"])
    assert caught.value.code == 0
    assert f"examples:\n  vkq shaders {command}" in capsys.readouterr().out


def test_progress_shows_on_a_terminal_after_two_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 1.0, 3.0, 4.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(progress("abc", 3, "compiling")) == ["a", "b", "c"]
    assert capsys.readouterr().err == "\r\x1b[Kcompiling 2/3\r\x1b[Kcompiling 3/3\r\x1b[K"


def test_module_and_closed_pipe() -> None:
    done = subprocess.run([sys.executable, "-m", "vkq", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout[:4]) == (0, "vkq ")
    code = f"{sys.executable} -m vkq shaders list --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("0", "")
