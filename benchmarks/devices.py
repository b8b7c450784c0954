"""Write the table of devices in docs/devices.md from ``devices/*.json``: ``python benchmarks/devices.py``.

Each file is what ``vkq report --json`` printed on a device. ``--check`` writes nothing: exit code 1 where the
page is old; a file that is no report is refused with its name and the rule.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE / "devices"
PAGE = HERE.parent / "docs" / "devices.md"
BEGIN, END = "<!-- from benchmarks/devices.py -->", "<!-- until here -->"
HEAD = (
    "device",
    "driver",
    "Vulkan",
    "`doctor`",
    "`check`",
    "int8 path",
    "TOPS",
    "row of 1024",
    "128 rows of 512",
)
ROW, ROWS = "linear[M=1,K=1024,N=1024]", "linear[M=128,K=512,N=512]"  # of the list `phone`
PRIVATE = re.compile(r'"[a-z_]*uuid"|/home/|/Users/|\\\\Users\\\\')


def read(file: Path) -> dict[str, Any]:
    """A report. Raises ValueError for what is none, and for one that tells more than a report does."""
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
    """The cells of a device."""
    doctor, device = report["doctor"], report["bench"]["device"]
    replays, check = doctor["replays"], report["check"]
    wrong = sum(bool(one["wrong"]) for one in replays)
    runs = sum(int(one["times"]) for one in replays)
    rates = {name: rate for name, rate in doctor["probe"]["rates"].items() if name not in ("fma", "copy")}
    return (
        str(device["name"]),
        str(device["driver"]),
        ".".join(map(str, device["vulkan"])) if isinstance(device["vulkan"], list) else str(device["vulkan"]),
        f"{runs:,} runs right" if doctor["healthy"] is True else f"**{wrong} of {len(replays)} works wrong**",
        f"{len(check['mismatches'])} mismatches",
        str(doctor["path"]),
        f"{max(rates.values()) / 1e12:.3g}" if rates else "-",
        *(_time(report["bench"]["rows"], case, bool(device["software"])) for case in (ROW, ROWS)),
    )


def _time(rows: list[dict[str, Any]], case: str, software: bool) -> str:
    """Microseconds on the device; a processor's are no times of a GPU."""
    times = [float(one["median_us"]) for one in rows if one["case"] == case and one["clock"] == "gpu"]
    return "-" if not times else f"{times[0]:,.0f} us" + (" (CPU)" if software else "")


def table() -> str:
    """The table in Markdown."""
    reports = [read(file) for file in sorted(FOLDER.glob("*.json"))]
    lines = [HEAD, ("---",) * len(HEAD), *(row(report) for report in reports)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 where the page is old"
    )
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    new = f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"
    if options.check:
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
