"""Write the table of devices in docs/devices.md from ``devices/*.json``: ``python benchmarks/devices.py``.

Each file is the output of ``vkq report --json --list phone --list mobilenet_v2 --list resnet50`` on one
device, without the samples; the two networks may be missing. ``--add FILE NAME`` stores a report as
NAME.json. A report of ``make test-arm64`` has no times, because times of an emulated processor mean
nothing. ``--check`` writes nothing and exits with code 1 if the page is out of date. For a file that is not a
report, the error has the file's name and the rule."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from vkq.check.works import LARGE

HERE = Path(__file__).parent
FOLDER = HERE / "devices"
PAGE = HERE.parent / "docs" / "devices.md"
BEGIN, END = "<!-- from benchmarks/devices.py -->", "<!-- until here -->"
HEAD = (
    "device",
    "driver",
    "Vulkan",
    "`doctor`",
    "large workloads",
    "`check`",
    "int8 path",
    "TOPS",
    "row of 1024",
    "row of 4096",
    "128 rows of 512",
    "MobileNetV2",
    "ResNet-50",
)
CASES = tuple(f"linear[{size}]" for size in ("M=1,K=1024,N=1024", "M=1,K=4096,N=4096", "M=128,K=512,N=512"))
NETWORKS = ("MobileNetV2", "ResNet-50")  # the cell of a network is the sum of the times of its layers
PRIVATE = re.compile(r'"[a-z_]*uuid"|/home/|/Users/|\\\\Users\\\\')


def read(file: Path) -> dict[str, Any]:
    """Read a report. Raise ValueError if the file is not a report or contains private data."""
    text = file.read_text(encoding="utf-8")
    if found := PRIVATE.search(text):
        raise ValueError(
            f"{file.name}: {found[0]} is private; write it with this version's vkq report --json"
        )
    try:
        report: dict[str, Any] = json.loads(text)
        row(report)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{file.name}: it is not what vkq report --json prints ({why})") from error
    return report


def row(report: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of one device's row."""
    doctor, replays, check = report["doctor"], report["doctor"]["replays"], report["check"]
    emulated = report.get("emulated")
    device = (
        doctor["device"] | {"vulkan": doctor["device"]["api_version"]}
        if emulated
        else report["bench"]["device"]
    )
    wrong = sum(bool(one["wrong"]) for one in replays)
    runs = sum(int(one["times"]) for one in replays)
    rates = {name: rate for name, rate in doctor["probe"]["rates"].items() if name not in ("fma", "copy")}
    return (
        str(device["name"]) + (f", emulated by {emulated}: correctness alone" if emulated else ""),
        str(device["driver"]),
        ".".join(map(str, device["vulkan"])) if isinstance(device["vulkan"], list) else str(device["vulkan"]),
        f"{runs:,} runs right" if doctor["healthy"] is True else f"**{wrong} of {len(replays)} wrong**",
        _large(replays),
        f"{len(check['mismatches'])} mismatches",
        str(doctor["path"]),
        f"{max(rates.values()) / 1e12:.3g}" if rates and not emulated else "-",
        *(["-"] * (len(CASES) + len(NETWORKS)) if emulated else _times(report["bench"])),
    )


def _large(replays: list[dict[str, Any]]) -> str:
    """Return the counts of the verified runs ("replays") of large workloads as text: first of cold runs,
    then of runs in other power states."""
    states = [one.get("state", "cold") for one in replays if one["case"] in LARGE]
    powered = [state for state in dict.fromkeys(states) if state != "cold"]
    also = f", {states.count(powered[0])} {' and '.join(powered)}" if powered else ""
    return f"{states.count('cold')} cold{also}" if states else "none"


def _times(bench: dict[str, Any]) -> list[str]:
    """Return the times on the device. Times of a CPU driver are marked "(CPU)"."""
    found = {one["case"]: float(one["median_us"]) for one in bench["rows"] if one["clock"] == "gpu"}
    found |= {
        one["network"]: float(one["time_us"])
        for one in bench["totals"]
        if one["clock"] == "gpu" and not one["missing"]
    }
    note = " (CPU)" if bench["device"]["software"] else ""
    return [_shown(found[name]) + note if name in found else "-" for name in (*CASES, *NETWORKS)]


def _shown(us: float) -> str:
    return f"{us:,.0f} us" if us < 1e4 else f"{us / 1e3:,.0f} ms"


def add(file: Path, name: str) -> None:
    """Store a report for the table, without the times that the table does not need."""
    report = read(file)
    if bench := report.get("bench"):
        rows = [row for row in bench["rows"] if row["clock"] == "gpu"]
        bench["rows"] = [{key: one for key, one in row.items() if key != "samples_us"} for row in rows]
    (FOLDER / f"{name}.json").write_text(json.dumps(report) + "\n", encoding="utf-8")


def table() -> str:
    """Return the table in Markdown."""
    reports = [read(file) for file in sorted(FOLDER.glob("*.json"))]
    lines = [HEAD, ("---",) * len(HEAD), *(row(report) for report in reports)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 where the page is old"
    )
    parser.add_argument(
        "--add", nargs=2, metavar=("FILE", "NAME"), help="a report and the name of its device"
    )
    options = parser.parse_args()
    if options.add:
        add(Path(options.add[0]), options.add[1])
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    new = f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"
    if options.check:
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
