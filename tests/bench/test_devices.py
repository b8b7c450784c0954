"""The table of devices: made from whole reports alone, and up to date."""

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
    report = json.loads(next(devices.FOLDER.glob("*.json")).read_text())
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
