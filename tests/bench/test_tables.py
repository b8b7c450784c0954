"""Tests of the stored results: the page of tables is made from them, and every result is used."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "benchmarks"
# Results that the page of tables does not show: references of `make mobile`, rows of docs/models.md, and
# reports of whole benchmark runs.
OTHERS = (
    "accuracy",
    "compiled-",
    "first-call-cpu",
    "h200-attention",
    "h200-expansion",
    "h200-first-call",
    "h200-float-networks",
)


def test_the_page_is_made_from_the_results() -> None:
    done = subprocess.run([sys.executable, ROOT / "tables.py", "--check"], check=False)
    assert done.returncode == 0, "run python benchmarks/tables.py"


def test_every_result_is_used() -> None:
    source = (ROOT / "tables.py").read_text()
    names = [file.stem for file in (ROOT / "results").iterdir()]
    assert names
    assert [name for name in names if f'"{name}"' not in source and not name.startswith(OTHERS)] == []
