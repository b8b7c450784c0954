"""A slice of the fuzzing, with the same inputs every time; `make fuzz SECONDS=...` goes on with others."""

from __future__ import annotations

import pytest

from . import engine
from .targets import TARGETS, Target


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_typed_errors(name: str) -> None:
    assert engine.fuzz(name, TARGETS[name], 300) >= 300


@pytest.mark.parametrize("defect", ["raise KeyError(1)", "bytearray(1 << 30)", "while True: pass"])
def test_defects_are_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untyped error, a gigabyte and an endless loop (cut short here by its own clock)."""
    code = defect.replace(
        "while True: pass", "import time; t = time.process_time()\nwhile time.process_time() < t + .2: pass"
    )
    monkeypatch.setattr(engine, "SECONDS", 0.15)
    with pytest.raises((KeyError, MemoryError, AssertionError)):
        engine.fuzz("none", Target(lambda data, folder: exec(code), (), (b"a",)), 20)
