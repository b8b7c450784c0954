"""Tests of ``vkq report``: the information that it must contain, and private data that it must omit."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vkq.check import replay, works
from vkq.cli import doctor, main
from vkq.cli.private import without_private
from vkq.probe import selftest
from vkq.runtime.device import Device


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("vkq bench -o /home/ada/x/r.html --plot", "vkq bench -o .../r.html --plot"),
        (r"C:\Users\Ada\vkq\a.json is not a file", ".../a.json is not a file"),
        ("~/models/a.onnx: no such file", ".../a.onnx: no such file"),
        ("3.11.2 (/home/ada/venv/bin/python)", "3.11.2 (.../python)"),
        ("1.5 GB/s, https://example.org/a/b, 3/4 of them, u8/i8", None),
        (f"{Path.cwd()}/build/a", ".../build/a"),
    ],
)
def test_paths_are_shortened(text: str, shown: str | None) -> None:
    assert without_private([{"a": (text,)}]) == [{"a": [shown or text]}]


@pytest.mark.parametrize("form", ["json", "html"])
def test_a_report_tells_nothing_private(
    software_device: Device,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    form: str,
) -> None:
    monkeypatch.setattr(works, "REPLAYED", works.REPLAYED[:1])
    monkeypatch.setattr(works, "LARGE", ())
    monkeypatch.setattr("vkq.cli.report.TIMES", 1)
    monkeypatch.setattr("vkq.bench.ceilings.measure", lambda device, say: {"copy": 1.0})
    monkeypatch.setattr("vkq.probe.selftest.probe_again", selftest.report_of)
    given: list[tuple[int, float]] = []
    replays = doctor.replays

    def noted(device: Device, paths: list[str], times: int, seconds: float) -> Iterator[replay.Replay]:
        given.append((times, seconds))
        return replays(device, paths, times, seconds)

    monkeypatch.setattr(doctor, "replays", noted)
    page = tmp_path / "r.html"
    words = ["report", "--device", software_device.name, "--count", "1", "--time", "0.001"]
    words += ["--list", "linear[M=3,K=5,N=7]", "-o", str(page), *(["--json"] if form == "json" else [])]
    assert main(words) == 0
    said = capsys.readouterr().out
    if form == "html":
        said = page.read_text(encoding="utf-8")
        inside = re.search('<script type="application/json" id="vkq-report">(.*)</script>', said)
        assert inside is not None
        found = json.loads(inside[1])
    else:
        assert not page.exists()
        found = json.loads(said)
    assert found["doctor"]["healthy"]
    assert given == [(1, 30.0)]  # `vkq report` runs replays for the same time as `vkq doctor`
    assert found["bench"]["command"].startswith("vkq report --device")
    for word in (str(Path.home()), os.getcwd(), str(tmp_path), sys.prefix, platform.node(),
                 software_device.capabilities.device_uuid):  # fmt: skip
        assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", said), word
