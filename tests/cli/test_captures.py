"""What commands print on a terminal of 80 and of 120 columns, as kept in ``captures/``: files to read.

Numbers, verdicts of times and the width of gaps may differ. ``VKQ_KEEP_CAPTURES=1 python -m pytest
tests/cli/test_captures.py`` writes the files anew; look at the difference.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import vkq
from tests.cli.test_examples import folder, short  # noqa: F401  fixtures
from vkq import cli

KEPT = Path(__file__).parent / "captures"
COMMANDS = {
    "bench-case": "bench linear[M=1,K=64,N=64] linear[M=5,K=64,N=64] --time 0.001 --no-ceilings",
    "bench-model": "bench model.onnx --time 0.001 --clock submit --no-ceilings",
    "bench-peer": "bench model.onnx --peer ort --time 0.001",
    "compare": "compare old.json new.json",
    "check": "check linear[M=9,K=9,N=9] --path portable",
    "compare-layers": "compare-layers float.onnx model.onnx -i inputs.npz",
    "eval": "eval model.onnx -c test.npz --float float.onnx",
    "export": "export model.onnx -o model.vkq --shape x=2x1x8x8 --for portable",
    "inspect": "inspect model.onnx",
    "inspect-float": "inspect float.onnx",
    "match": "match photo.png pictures/a.png pictures/b.png",
    "plot": "plot run.json -o roofline.png",
    "quantize": "quantize float.onnx -c inputs.npz --fast -o made.onnx",
    "run": "run model.onnx -i inputs.npz --compare onnxruntime",
    "run-profile": "run model.onnx --random --profile --repeat 3",
    "shaders-list": "shaders list gemv_q8csw",
    "refused-file": "run nothing.onnx --random",
    "refused-option": "bench model.onnx --peer torch",
    "refused-shape": "run model.onnx --random --shape x=2x3x8x8",
}
BY_TIME = ("bench-model", "run-profile")  # whose lines may come in another order


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def captured(words: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command as typed, and what it says on a terminal (progress aside)."""
    out, err = Terminal(), io.StringIO()
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        cli.main(words.split())
    lines = [f"$ vkq {words}", *out.getvalue().splitlines(), *err.getvalue().splitlines()]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def alike(text: str) -> list[str]:
    """Without what another run or machine changes: numbers, the host, verdicts and warnings of times."""
    text = re.sub(r"^warning: .*\n(?: {9}.*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^host .*$", "host", text, flags=re.MULTILINE)
    text = re.sub(r"\b(faster|slower|equal)\b(?=\n|$)", "verdict", text)
    text = re.sub(r"[-+]?\d[\d,.]*(e[-+]\d+)?", "0", text)
    words = re.sub(r"\s+", " ", text).split(" ")  # lines are folded where numbers let them
    return [re.sub(r"^-?inf$|^nan$", "0", word) for word in words if word]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("short")
def test_as_kept(
    name: str, columns: int, folder: Path,  # noqa: F811
    software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VKQ_DEVICE", software_device.name)
    text = captured(COMMANDS[name], columns, monkeypatch)
    kept = KEPT / f"{name}.{columns}.txt"
    if os.environ.get("VKQ_KEEP_CAPTURES"):
        KEPT.mkdir(exist_ok=True)
        kept.write_text(text, encoding="utf-8")
    ordered = sorted if name in BY_TIME else list
    assert ordered(alike(text)) == ordered(alike(kept.read_text(encoding="utf-8")))
    out = text.partition("\nvkq: error")[0].splitlines()[1:]  # errors are lines to copy, as typed
    assert max(map(len, out), default=0) <= columns
    assert str(tmp_path) not in text, "as typed: nobody wants to read more of a path than he wrote"


def test_every_file_is_of_a_command() -> None:
    assert {path.name for path in KEPT.iterdir()} == {
        f"{name}.{columns}.txt" for name in COMMANDS for columns in (80, 120)
    }


def test_what_counts_as_alike() -> None:
    assert alike("a 1.5 us,  12 of 3\nhost  a CPU\n") == alike("a 0.7 us, 1 of 99\nhost  another\n")
    assert alike("warning: drift\n         goes on\nb\n") == alike("b\n")
    assert alike("takes 0.2 of it, faster\n") == alike("takes 1.0 of it, equal\n")
    assert alike("a b") != alike("a c")
