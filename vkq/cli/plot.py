"""``vkq plot``: draw plots of results that a file stores."""

from __future__ import annotations

import argparse
from pathlib import Path

from vkq.bench import plot, result
from vkq.bench.cases import expand
from vkq.check.cases import Case
from vkq.cli.common import Parsers, add_command, output_file
from vkq.errors import ArgumentError

# The keys of the times in a row that benchmarks/networks.py writes, with the names of their bars, in order.
TIMES = {"gpu_ms": "vkq int8 (device time)", "torch_fp16_cuda_graph_ms": "PyTorch fp16, CUDA graph"}


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "plot",
        run,
        "draw a kept result: a sweep, a roofline, or networks beside other libraries (needs matplotlib)",
        [
            "vkq plot run.json -o roofline.svg",
            "vkq plot run.json -o roofline-dark.png --theme dark --path coopmat",
            "vkq plot networks.json -o networks.svg       # of benchmarks/networks.py",
        ],
    )
    parser.add_argument("result", type=Path, metavar="RESULT.json")
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        required=True,
        metavar="FILE",
        help="the file to write: .svg, .png or .pdf",
    )
    parser.add_argument(
        "--theme", choices=list(plot.THEMES), default="light", help="the colours of the plot (default: light)"
    )
    parser.add_argument("--path", metavar="PATH", help="draw only the rows of this path")
    parser.add_argument(
        "--case", metavar="TEXT", default="", help="draw only cases whose name contains this text"
    )


def run(options: argparse.Namespace) -> int:
    plot.check(options.output)
    found = result.read_json(options.result)
    if isinstance(found, dict) and "networks" in found:
        plot.bars(_title(found), _groups(found["networks"]), options.output, options.theme)
        print(options.output)
        return 0
    measured = result.read(options.result)
    measured.rows = [
        row
        for row in measured.rows
        if options.case in row.case and (options.path is None or row.path == options.path)
    ]
    # Leave out whole models: their names have no sizes, so they cannot be parsed as cases.
    named = dict.fromkeys(row.case for row in measured.rows if row.scheme != "model")
    cases = [Case(expand(name)[0]) for name in named]
    plot.draw(measured, cases, options.output, options.theme)
    print(options.output)
    return 0


def _title(found: dict[str, object]) -> str:
    said = [found.get("device"), found.get("driver"), found.get("date")]
    return "whole networks, " + ", ".join(str(one)[:60] for one in said if one)


def _groups(rows: object) -> dict[str, dict[str, float]]:
    """Return a dict from the text "NETWORK, batch N" to a dict from the library to milliseconds."""
    groups: dict[str, dict[str, float]] = {}
    for row in rows if isinstance(rows, list) else []:
        known = isinstance(row, dict) and {"batch", "gpu_ms"} <= row.keys()
        if not known or not all(isinstance(row.get(key, 0.0), (int, float)) for key in TIMES):
            raise ArgumentError(
                "networks: a row needs batch and gpu_ms, as benchmarks/networks.py writes them"
            )
        name = Path(str(row.get("net") or row.get("model", "?"))).stem
        times = {label: float(row[key]) for key, label in TIMES.items() if row.get(key)}
        groups[f"{name}, batch {row['batch']}"] = times
    if not groups:
        raise ArgumentError("networks: there is no row to draw")
    return groups
