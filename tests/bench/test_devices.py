"""Tests of the table of devices: it contains only complete reports, and is up to date."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def devices() -> ModuleType:
    spec = importlib.util.spec_from_file_location("devices_table", ROOT / "devices.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_reports() -> None:
    done = subprocess.run([sys.executable, ROOT / "devices.py", "--check"], check=False)
    assert done.returncode == 0, "run python benchmarks/devices.py"


def test_every_report_is_whole_and_right(devices: ModuleType) -> None:
    files = sorted(devices.FOLDER.glob("*.json"))
    assert files
    for file in files:
        report = devices.read(file)
        assert report["doctor"]["healthy"], file.name
        assert not report["check"]["mismatches"], file.name


@pytest.mark.parametrize("missing", ["doctor", "bench", "check"])
def test_a_malformed_report_is_refused(devices: ModuleType, tmp_path: Path, missing: str) -> None:
    report = json.loads((devices.FOLDER / "lavapipe.json").read_text())
    del report[missing]
    (tmp_path / "a.json").write_text(json.dumps(report))
    with pytest.raises(ValueError, match=rf"a.json: it is not what vkq report --json prints .*{missing}"):
        devices.read(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ValueError, match=r"a.json: it is not what"):
        devices.read(tmp_path / "a.json")


def test_a_private_word_is_refused(devices: ModuleType, tmp_path: Path) -> None:
    report = json.loads(next(devices.FOLDER.glob("*.json")).read_text())
    (tmp_path / "a.json").write_text(json.dumps(report | {"note": "/home/ada/x"}))
    with pytest.raises(ValueError, match=r"a.json: /home/ is private"):
        devices.read(tmp_path / "a.json")


def test_an_added_report_keeps_what_the_table_says(
    devices: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = json.loads((devices.FOLDER / "nvidia-h200.json").read_text())
    row = {**report["bench"]["rows"][0], "case": devices.CASES[1], "median_us": 1234.4, "samples_us": [1.0]}
    report["bench"]["rows"] = [{**row, "clock": "call", "median_us": 9.0}, row]
    total = {"network": "ResNet-50", "clock": "gpu", "time_us": 23456.0, "missing": 0}
    left = {"network": "MobileNetV2", "clock": "gpu", "time_us": 1.0, "missing": 1}
    report["bench"]["totals"] = [{**total, "clock": "call", "time_us": 1.0}, total, left]
    (tmp_path / "given").write_text(json.dumps(report))
    monkeypatch.setattr(devices, "FOLDER", tmp_path)
    devices.add(tmp_path / "given", "new")
    kept = devices.read(tmp_path / "new.json")
    assert devices.row(kept) == devices.row(report)
    assert devices.row(kept)[-5:] == ("-", "1,234 us", "-", "-", "23 ms")
    assert [list(one) for one in kept["bench"]["rows"]] == [[key for key in row if key != "samples_us"]]


def test_large_works_and_states_of_power_are_told(devices: ModuleType) -> None:
    """The table counts the replays (verified runs of `vkq doctor`) of large workloads by power state.
    Replays of small workloads do not count. A replay without a power state counts as cold."""
    report = json.loads((devices.FOLDER / "nvidia-h200.json").read_text())
    column = devices.HEAD.index("large workloads")
    small = {"case": "linear[M=33,K=75,N=37]/seed=1", "times": 6, "wrong": 0, "state": "cold"}
    large = small | {"case": devices.LARGE[0]}
    states = [large] * 3 + [large | {"state": state} for state in ("loaded", "loaded", "idle", "idle")]
    for replays, said in (
        ([small], "none"),
        ([small, large], "1 cold"),
        (states, "3 cold, 2 loaded and idle"),
    ):
        report["doctor"]["replays"] = replays
        assert devices.row(report)[column] == said
    del small["state"]
    assert devices.row(report | {"doctor": report["doctor"] | {"replays": [small]}})[column] == "none"


def test_an_emulated_processor_has_no_times(devices: ModuleType) -> None:
    cells = devices.row(devices.read(devices.FOLDER / "lavapipe-arm64.json"))
    assert cells[0].endswith(", emulated by qemu-user (aarch64): correctness alone")
    assert "runs right" in cells[3]
    assert set(cells[7:]) == {"-"}
