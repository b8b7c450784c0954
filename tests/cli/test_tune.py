"""What `vkq tune` prints."""

from typing import Any

import pytest

from vkq.cli import tune


def result(
    setting: str, time_us: float | None, final: bool = False, error: str | None = None
) -> dict[str, Any]:
    return {"setting": setting, "time_us": time_us, "final": final, "error": error}


def test_settings_that_were_slower_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """But for the default, the one that is kept, and what could not run."""
    slower = [result(f"slow {i:02}", 20.0 + i) for i in range(12)]
    results = [result("bad", None, error="no"), *slower, result("best", 10.0, final=True)]
    told = {"problem": "p", "path": "auto", "device": "d", "kernels": [], "speedup": 3.0, "results": results}
    tune._show({**told, "kept": "best", "default": "slow 11"})
    said = capsys.readouterr().out
    assert [f"slow {i:02}" in said for i in range(12)] == [True] * 5 + [False] * 6 + [True]
    assert "6 more, slower in the first round (--json has them)" in said
    assert "bad" in said
    assert " * best" in said
