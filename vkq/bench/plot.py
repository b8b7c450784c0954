"""Pictures of a result: GOP/s and latency over a swept size, or a roofline under the measured ceilings. Needs
matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vkq.bench.cases import swept
from vkq.bench.result import Result, Row
from vkq.check.cases import Case
from vkq.errors import ArgumentError


def library() -> Any:
    """matplotlib without a display. Raises ArgumentError where it is not installed."""
    try:
        figure = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ArgumentError(
            f"--plot needs matplotlib ({error}); install it: pip install 'vkq[plot]'"
        ) from error
    return figure


def draw(result: Result, cases: Sequence[Case], path: Path) -> None:
    """Writes the picture; its format follows the file's suffix (.png, .svg, .pdf)."""
    rows = [row for row in result.rows if row.clock == _clock(result)]
    if not rows:
        raise ArgumentError("--plot: there is no row to draw; every case failed")
    size = swept(cases)
    figure = library().Figure(figsize=(9, 7 if size else 5.5), layout="constrained")
    if size:
        _sweep(figure, rows, size)
    else:
        _roofline(figure, rows, result.ceilings)
    software = ", software device" if result.device["software"] else ""
    figure.suptitle(
        f"vkq {result.vkq} on {result.device['name']}{software}, {rows[0].clock} clock", fontsize=10
    )
    figure.savefig(path, dpi=120)


def _clock(result: Result) -> str:
    """The first clock that was measured: gpu where there are timestamps."""
    measured = {row.clock for row in result.rows}
    return next((clock for clock in ("gpu", "submit", "call", "host") if clock in measured), "gpu")


def _series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        label = " ".join(
            filter(None, [row.path, row.scheme if row.scheme != "q8ta_q8csw_q8to" else "", row.method])
        )
        found.setdefault(label + (", one scale" if row.scale == "tensor" else ""), []).append(row)
    return found


def _size(row: Row, size: str) -> str:
    return dict(item.split("=") for item in row.case.partition("[")[2][:-1].split(",")).get(size, "0")


def _sweep(figure: Any, rows: Sequence[Row], size: str) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True)
    for label, series in _series(rows).items():
        numbers = [float(_size(row, size).split("x")[0]) for row in series]
        order = sorted(range(len(series)), key=lambda i: numbers[i])
        xs, ordered = [numbers[i] for i in order], [series[i] for i in order]
        upper.plot(xs, [row.gops for row in ordered], marker="o", label=label)
        lower.plot(xs, [row.median_us for row in ordered], marker="o", label=label)
        lower.fill_between(xs, [row.p20_us for row in ordered], [row.p80_us for row in ordered], alpha=0.2)
    upper.set_ylabel("GOP/s")
    lower.set_ylabel("us (p20 to p80 shaded)")
    lower.set_xlabel(size)
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def _roofline(figure: Any, rows: Sequence[Row], ceilings: dict[str, float | None]) -> None:
    axes = figure.subplots()
    intensities = [row.operations / row.bytes for row in rows]
    left, right = min(intensities) / 4, max(intensities) * 4
    copy = ceilings.get("copy")
    for name, rate in ceilings.items():
        if rate and name != "copy":
            knee = [rate / copy] if copy and left < rate / copy < right else []
            xs = [left, *knee, right]
            axes.plot(
                xs,
                [min(rate, x * copy) if copy else rate for x in xs],
                linewidth=1,
                label=f"ceiling {name}, copy",
            )
    for label, series in _series(rows).items():
        xs = [row.operations / row.bytes for row in series]
        axes.scatter(xs, [row.gops for row in series], s=20, label=label, zorder=3)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="GOP/s")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
