"""``vkq report``: write one HTML file about a device, to attach to an issue. The file also contains the data
as JSON. Neither the page nor the data identifies a user, a host, a folder or a single device."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import html
import json
import shlex
import tempfile
import time
from pathlib import Path
from typing import Any

from vkq import files
from vkq._version import __version__
from vkq.bench import cases, plot
from vkq.bench.report import Table, footer, header
from vkq.bench.result import Result
from vkq.bench.run import Request, Runner, paths_of
from vkq.bench.timer import Settings
from vkq.bench.totals import totals
from vkq.check.catalogue import random_checks
from vkq.cli import bench, check, devices, doctor
from vkq.cli.common import (
    Parsers,
    add_command,
    device_argument,
    integer_option,
    number,
    output_file,
    status_line,
)
from vkq.cli.private import without_private
from vkq.errors import ArgumentError
from vkq.runtime.device import Device

TIMES = 20  # maximum number of replays of each workload (`vkq doctor`: 200)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
body { color: #1f2328; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
pre { overflow-x: auto; background: #f6f8fa; padding: .8rem; font-size: 13px; line-height: 1.4 }
svg { max-width: 100%; height: auto }
.good { color: #1a7f37 } .bad { color: #cf222e }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117 } pre { background: #161b22 }
  .good { color: #3fb950 } .bad { color: #f85149 }
}
"""


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "report",
        run,
        "write one HTML file about a device to attach to an issue: capabilities, correctness and speed",
        [
            "vkq report -o report.html",
            "vkq report --json > phone.json",
            "vkq report -o phone.html --device 0 --count 200 --list phone --list mobilenet_v2",
        ],
    )
    parser.add_argument(
        "-o", "--output", type=output_file, default="vkq-report.html", metavar="FILE.html",
        help="the file to write (default: vkq-report.html)",
    )  # fmt: skip
    device_argument(parser)
    parser.add_argument(
        "--count", type=integer_option(1, 100_000), default=50, metavar="N",
        help="number of random cases of vkq check (default: 50)",
    )  # fmt: skip
    parser.add_argument(
        "--list",
        action="append",
        metavar="LIST",
        help="a list of vkq bench to measure; may be repeated (default: phone)",
    )
    parser.add_argument(
        "--time", type=number(0, 3600, above=True), default=2.0, metavar="S",
        help="the maximum number of seconds for a case and clock (default: 2)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print only the JSON, and write no file")


def run(options: argparse.Namespace) -> int:
    """Write the report. Return exit code 1 if any byte of a result was wrong."""
    lists = options.list or ["phone"]
    chosen = cases.select(lists)
    found: dict[str, Any] = {
        "schema": 1,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "vkq": __version__,
        "devices": devices.described(),
        "doctor": doctor.examine(options.device, TIMES),
    }
    with Device(options.device) as device:
        summary, mismatches = check.compared(device, list(random_checks(options.count, 0)))
        found["check"] = {"summary": summary, "mismatches": [dataclasses.asdict(one) for one in mismatches]}
        result = _measured(device, options, chosen)
    result.totals = totals(cases.networks(lists), result.rows, result.ceilings)
    found["bench"] = json.loads(result.to_json())
    found, result.device = without_private(found), without_private(result.device)
    good = found["doctor"]["healthy"] and not mismatches and not result.mismatches
    if options.json:
        print(json.dumps(found))
        return 0 if good else 1
    page = _page(found, result, chosen, good)
    with files.output(options.output) as file:
        file.write_text(page, encoding="utf-8")
    print(f"{options.output}: {'healthy' if good else 'WRONG NUMBERS, see there'}; attach it to an issue")
    return 0 if good else 1


def _measured(device: Device, options: argparse.Namespace, chosen: list[Any]) -> Result:
    request = Request(
        paths_of(["auto"], device), ("gpu", "submit", "call"), None, (), Settings(time_s=options.time),
        options.device,
    )  # fmt: skip
    begin = time.perf_counter()
    with status_line() as status:
        command = without_private(shlex.join(["vkq", *options.argv]))
        result = bench.empty(device, request, command, status)
        runner = Runner(device, request, result, status)
        for case in chosen:
            runner.run(case)
    result.seconds = round(time.perf_counter() - begin, 1)
    return result


def _page(found: dict[str, Any], result: Result, chosen: list[Any], good: bool) -> str:
    table = Table(chosen, None)
    lines = table.lines(result.rows, result.comparisons, result.failures)
    rows = [table.head(), *lines, *table.totals(result.totals)]
    summary = found["check"]["summary"]
    said = {
        "Device": _pre(header(result)),
        "Path": _pre([f"{found['doctor']['path']}: {found['doctor']['reason']}"]),
        "Replays": _pre(
            f"{r['times']} x {r['path']:9} {'the same bytes' if not r['wrong'] else 'DIFFERENT'}  {r['case']}"
            for r in found["doctor"]["replays"]
        ),
        "Check": _pre([f"{key:18} {value}" for key, value in summary.items()]),
        "Bench": _pre([*rows, "", *footer(result)]) + _plot(result),
        "Versions": _pre(f"{key:16} {value}" for key, value in found["doctor"]["versions"].items()),
    }
    sections = "\n".join(f"<h2>{title}</h2>\n{body}" for title, body in said.items())
    verdict = "healthy: every byte was right" if good else "wrong numbers: see below"
    title = html.escape(f"vkq {__version__} on {result.device['name']}")
    # Escape "<", so that no text in the data can end the HTML element.
    inside = json.dumps(found).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        f'<p class="{"good" if good else "bad"}">{verdict}. {html.escape(found["created"])}</p>\n{sections}\n'
        f'<script type="application/json" id="vkq-report">{inside}</script>\n</body></html>\n'
    )


def _pre(lines: Any) -> str:
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def _plot(result: Result) -> str:
    """Return the roofline as an SVG element, or, if it cannot be drawn, the reason as HTML."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "roofline.svg"
        try:
            plot.draw(result, (), path)
        except ArgumentError as error:
            return _pre([f"no picture: {error}"])
        text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]
