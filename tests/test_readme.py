"""Tests that the README's example, every example script and the examples of every docstring run."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vkq

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
PRINTED = "(10, 10)", "10)", "[[20 50]]"  # texts that the blocks of code must print
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
# Modules are listed by file, because in an editable install the package's path contains the checkout. A
# __main__ module runs when it is imported.
FILES = [path for path in sorted((ROOT / "vkq").rglob("*.py")) if path.stem not in ("__main__", "__init__")]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES]


@pytest.fixture(autouse=True)
def default_device(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkq.runtime.opened._default", any_device)
    monkeypatch.setenv("VKQ_DEVICE", any_device.name)


@pytest.mark.parametrize(("block", "printed"), list(zip(BLOCKS, PRINTED, strict=True)), ids=PRINTED)
def test_readme_example(
    block: str, printed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(block, "README.md", "exec"), {})
    assert printed in capsys.readouterr().out


def test_the_tests_that_prove_exactness_exist() -> None:
    named = set(re.findall(r"`(tests/[^`]+)`", (ROOT / "docs/exactness.md").read_text()))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_a_release_has_what_its_commands_run() -> None:
    """The release commands in CONTRIBUTING.md run programs of PyPI packages. All these packages are in the
    Makefile's list that `make wheels` installs."""
    _, _, release = (ROOT / "CONTRIBUTING.md").read_text().partition("## A release\n")
    programs = {name for name in re.findall(r"-m ([a-z]+)", release) if name not in ("pytest", "tests")}
    listed = re.search(r"^RELEASE := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None
    assert programs == {"twine"} <= set(listed[1].split())
    assert all(
        command in release for command in ("git tag -a v", "git push origin main v", "twine upload dist")
    )


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example(script: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "VKQ_VALIDATION": "0",
        "PYTHONPATH": str(ROOT) if "PYTHONPATH" in os.environ else "",
    }
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    """Every example in a docstring gives the stated result."""
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
