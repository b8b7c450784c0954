"""Tests that run a part of the fuzzing, with the same inputs every time; `make fuzz SECONDS=...` uses new
inputs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from . import __main__ as command
from . import engine
from .targets import TARGETS, Target


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_typed_errors(name: str) -> None:
    assert engine.fuzz(name, TARGETS[name], 300) >= 300


@pytest.mark.parametrize("defect", ["raise KeyError(1)", "bytearray(1 << 30)", "while True: pass"])
def test_defects_are_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuzzing finds three seeded defects: an untyped error, a gigabyte of memory, and an endless loop."""
    monkeypatch.setattr(engine, "WATCH_S", 0.05)
    monkeypatch.setattr(engine, "STEPS", 20_000)
    with pytest.raises((KeyError, MemoryError, AssertionError)):
        engine.fuzz("none", Target(lambda data, folder: exec(defect), (), (b"a",)), 20)


def test_a_slow_machine_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of the machine does not change a verdict: every input takes longer than `WATCH_S` here, but
    runs few instructions, and passes."""
    monkeypatch.setattr(engine, "WATCH_S", 0.001)

    def slow(data: bytes, folder: Path) -> None:
        start = time.process_time()
        while time.process_time() < start + 0.003:
            pass

    assert engine.fuzz("none", Target(slow, (), (b"a",)), 20) >= 20


def test_what_was_found_is_tried_again_and_turns_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(data: bytes, folder: Path) -> None:
        (folder / "left").write_bytes(data)
        assert data != b"defect"

    monkeypatch.setitem(command.TARGETS, "none", Target(run, (), (b"a",)))
    assert command.tried("none", b"fine") == ""
    assert "AssertionError" in command.tried("none", b"defect")
    of = {"target": "none", "processor_s": 1.5}
    grown = [{**of, "executions": 1000, "branches": 7, "last_new_at": 900}] * 2
    told = command.table([*grown, {**of, "executions": 500, "branches": 9, "last_new_at": 20}])
    assert told.splitlines()[-1].split() == ["none", "2,500", "4", "9", "480"]
    assert command.table(grown).split()[-1] == "1,100"
