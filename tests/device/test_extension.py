"""Tests that a compiled extension from other sources is refused before any call."""

import importlib
import sys
from pathlib import Path

import pytest

import vkq
from vkq.device import extension


def test_it_was_built_from_the_bindings_that_lie_here() -> None:
    native = extension.native_module()
    assert native.bindings_sha256 == extension._sources()


def test_a_stale_one_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A change of any source file makes the extension stale."""
    built = extension.native_module().bindings_sha256[:8]
    sources = sorted(extension._BINDINGS.glob("bind*.cpp"))
    assert len(sources) > 1
    for changed in sources:
        for source in sources:
            text = source.read_text() + ("// another argument" if source == changed else "")
            (tmp_path / source.name).write_text(text)
        with monkeypatch.context() as patched:
            patched.setattr(extension, "_BINDINGS", tmp_path)
            with pytest.raises(vkq.DeviceError, match=rf"is stale: .*\({built}\) than those in .*make"):
                extension.native_module.__wrapped__()


def test_where_no_sources_lie_there_is_nothing_to_compare(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extension, "_BINDINGS", tmp_path)
    assert extension.native_module.__wrapped__() is extension.native_module()


def test_one_for_another_python_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    (tmp_path / "_kompute.cpython-39-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(importlib, "import_module", fails)
    monkeypatch.setattr(sys.modules["vkq"], "__path__", [str(tmp_path)])
    with pytest.raises(
        vkq.DeviceError, match=r"there is _kompute\.cpython-39-.*, and this Python takes .*make"
    ):
        extension.native_module.__wrapped__()
