"""Tests of the choice of cases that SwiftShader skips."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest

PATHS, SHAPES = ("dot", "words"), ("one", "two", "three", "four", "five")


class Item(SimpleNamespace):
    """A fake of pytest's Item with the fields that conftest.py reads."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def kept(
    monkeypatch: pytest.MonkeyPatch, folder: str, every: bool = False, args: tuple[str, ...] = ()
) -> list:
    """Return (driver, path, shape) of the cases that run."""
    monkeypatch.setattr(conftest, "EVERY", every)
    marks = [SimpleNamespace(args=("path", PATHS)), SimpleNamespace(args=("shape, more", SHAPES))]
    items = [
        Item(
            nodeid=f"test_x[{driver}-{path}-{shape}]",
            path=Path("tests", folder, "test_x.py"),
            callspec=SimpleNamespace(params={"device": driver, "path": path, "shape": shape, "more": shape}),
            iter_markers=lambda _: marks,
        )
        for driver in ("lavapipe", "swiftshader")
        for path in PATHS
        for shape in SHAPES
    ]
    out: list[object] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: out.extend(items))
    conftest.pytest_collection_modifyitems(SimpleNamespace(args=args, hook=hook), items)  # type: ignore[arg-type]
    assert len(items) + len(out) == 2 * len(PATHS) * len(SHAPES)
    return [
        (i.callspec.params["device"], i.callspec.params["path"], i.callspec.params["shape"]) for i in items
    ]


def test_swiftshader_runs_every_value_and_lavapipe_every_combination(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = kept(monkeypatch, "ops")
    assert sum(driver == "lavapipe" for driver, _, _ in ran) == 10
    second = [(path, shape) for driver, path, shape in ran if driver == "swiftshader"]
    assert len(second) == 5
    assert {path for path, _ in second} == set(PATHS)
    assert {shape for _, shape in second} == set(SHAPES)


def test_everything_runs_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(kept(monkeypatch, "runtime")) == 20
    assert len(kept(monkeypatch, "ops", True)) == 20
    assert len(kept(monkeypatch, "ops", args=("tests/ops/test_x.py::test_x",))) == 20
