"""Tests of the manual: its code and commands run, it names every public name, and it builds without a
warning."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.integer
from tests.cli.test_examples import folder, run_shortened, short  # noqa: F401  fixtures
from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.name != "changelog.md")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def named(page: Path) -> str:
    return str(page.relative_to(DOCS))


COMMANDS = list(
    dict.fromkeys(
        line.removeprefix("$ vkq ").strip()
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.splitlines()
    )
)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=named)
def test_code(page: Path, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """All code blocks of a page run in order, in one namespace."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("vkq.runtime.opened._default", software_device)
    if page.name == "from-pytorch.md":
        pytest.importorskip("torch", reason="torch is not a dependency of the tests")
        warnings.simplefilter("ignore")  # ignores the page's own warnings; pytest restores the filters
    names: dict[str, object] = {}
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{named(page)}, block {number}", "exec"), names)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("short")
def test_command(
    command: str,
    folder: Path,  # noqa: F811
    software_device: vkq.Device,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    run_shortened(shlex.split(command), folder, software_device, monkeypatch, capsys, tmp_path)


def test_the_program_that_judges_candidates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """models.md has a script for `vkq quantize --target`. Its last line of output is the share of correct
    answers."""
    (script,) = blocks(DOCS / "models.md", "py")
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(8, 3)).astype(np.float32), np.array([0, 1, 2, 0, 1, 2, 0, 1])
    x[np.arange(8), labels] += 9
    x[0, 1] += 90  # makes the model's answer for this row wrong
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (None, 3)) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "test.npz", x=x, labels=labels)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["judge.py", "m.onnx"])
    exec(compile(script, "judge.py", "exec"), {})
    assert float(capsys.readouterr().out.splitlines()[-1]) == 7 / 8


def test_the_server_of_fastapi(software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server in serving.md runs, with a fake of the few functions of FastAPI that it uses."""
    handlers: dict[str, Any] = {}

    class FastAPI:
        def post(self, path: str) -> Callable[[Any], Any]:
            return lambda handler: handlers.setdefault(path, handler)

    monkeypatch.setitem(sys.modules, "fastapi", SimpleNamespace(FastAPI=FastAPI))
    monkeypatch.setattr("vkq.runtime.opened._default", software_device)
    monkeypatch.chdir(ROOT)
    (script,) = blocks(DOCS / "serving.md", "py")
    exec(compile(script, "server.py", "exec"), {})
    digits = np.load("examples/models/digits.npz")
    told = [handlers["/digit"](image.tolist())["digit"] for image in digits["images"][::23]]
    assert len(set(told)) > 5
    assert np.mean(told == digits["labels"][::23]) > 0.9


def test_every_block_is_of_a_kind_that_is_run_or_marked() -> None:
    """Every block of code in the pages has one of the listed kinds. A page with C++ or Kotlin says that
    these blocks are sketches and not run. Other tests run the blocks of the other languages."""
    found = {
        (named(page), kind)
        for page in PAGES
        for kind in re.findall(r"^```(\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    kinds = {kind for _, kind in found}
    assert kinds <= {
        "python",
        "py",  # each of these blocks has a test of its own
        "console",
        "c",
        "cpp",
        "kotlin",
        "sh",
        "yaml",
        "dockerfile",
        "{eval-rst}",
        "{toctree}",
        "{vkq-help}",
    }
    for page, kind in found:
        if kind in ("cpp", "kotlin"):
            assert re.search(r"a sketch, not run", (DOCS / page).read_text(encoding="utf-8")), page


def test_everything_public_is_in_the_reference() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"auto(?:function|class):: (\w+)", text))
    # api.md documents the errors as a module
    errors = {name for name in vkq.__all__ if name.endswith("Error")}
    assert set(vkq.__all__) - errors - {"__version__", "integer"} <= documented
    assert set(vkq.integer.__all__) <= documented


@pytest.mark.parametrize("name", sorted(set(vkq.__all__) - {"__version__", "integer"}))
def test_everything_public_says_what_it_is(name: str) -> None:
    assert len((getattr(vkq, name).__doc__ or "").strip()) > 30


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert "2**-126" in page
    assert "vkq bench" in (tmp_path / "commands.html").read_text(encoding="utf-8")
