"""A result as a table for the terminal, Markdown or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from vkq.bench.result import Comparison, Failure, Result, Row

Cells = list[str]
_COLUMNS = (
    "gpu us", "p20..p80", "submit us", "call us", "host us", "GOP/s", "of ceiling", "GB/s", "of copy",
    "ratio",
)  # fmt: skip
CSV_COLUMNS = (
    "case", "scheme", "scale", "method", "path", "arm", "variant", "clock", "median_us", "p20_us", "p80_us",
    "samples", "dispatches", "passes", "sets", "gops", "gbps", "compute_ceiling", "compute_share",
    "copy_share", "overhead_us", "verified", "device", "warnings", "command",
)  # fmt: skip


def header(result: Result) -> list[str]:
    """Lines that say what was measured on: device, host, ceilings."""
    device, software = result.device, " SOFTWARE DEVICE" if result.device["software"] else ""
    rates = [
        f"{name} {value:,.0f} GOP/s" for name, value in result.ceilings.items() if value and name != "copy"
    ]
    copy = result.ceilings.get("copy")
    rates += [f"copy {copy:,.1f} GB/s"] if copy else []
    missing = [name for name, value in result.ceilings.items() if not value]
    return [
        (
            f"vkq {result.vkq} on {device['name']} ({device['type']}, Vulkan {device['vulkan']},"
            f" {device['driver']}){software}"
        ),
        f"host     {result.host['cpu']}, {result.host['cpus']} CPUs",
        f"ceilings {', '.join(rates) or 'not measured'}"
        + (f"; none: {', '.join(missing)}" if missing else ""),
    ]


def case_lines(
    rows: Sequence[Row], comparisons: Sequence[Comparison], failures: Sequence[Failure]
) -> list[str]:
    """The table's lines for some cases: one for each arm, ending with the command that measures it again."""
    widths = [11, 19, 11, 11, 9, 10, 18, 9, 8, 24]
    lines = []
    for arm in _arms(rows):
        cells = _cells(arm, comparisons)
        lines.append(
            " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
            + f"  {_command(arm)}"
        )
    for one in failures:
        word = "MISMATCH" if one.kind == "mismatch" else "not run"
        lines.append(f"{word:>11} {one.path}: {one.reason}  {one.command}")
    return lines


def columns() -> str:
    """The table's head."""
    return (
        " ".join(
            name.rjust(width)
            for name, width in zip(_COLUMNS, [11, 19, 11, 11, 9, 10, 18, 9, 8, 24], strict=True)
        )
        + "  command"
    )


def footer(result: Result) -> list[str]:
    """Warnings, each once with the number of rows, and mismatches."""
    counts: dict[str, int] = {}
    for row in result.rows:
        for warning in row.warnings:
            counts[warning] = counts.get(warning, 0) + 1
    lines = [f"warning: {warning} ({count} of {len(result.rows)} rows)" for warning, count in counts.items()]
    wrong = len(result.mismatches)
    if wrong:
        lines.append(
            f"{wrong} MISMATCH: these give wrong numbers on this device; please report them with `vkq devices"
            " --json`"
        )
    lines.append(
        f"{len(_arms(result.rows))} arms in {result.seconds:.0f} s; every time was taken after its numbers"
        " had been verified"
    )
    return lines


def _arms(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """Rows that differ in the clock alone, together: clock -> row."""
    found: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.key[:-1], {})[row.clock] = row
    return list(found.values())


def _cells(arm: dict[str, Row], comparisons: Sequence[Comparison]) -> Cells:
    gpu, submit, call, host = (arm.get(clock) for clock in ("gpu", "submit", "call", "host"))
    main = gpu or submit or call or host
    assert main is not None
    return [
        _time(gpu), f"{_us(main.p20_us)}..{_us(main.p80_us)}", _time(submit), _time(call), _time(host),
        _rate(main.gops) if main is not host else "-",
        f"{main.compute_share:.0%} {main.compute_ceiling}" if main.compute_share else "-",
        _rate(main.gbps) if main is not host else "-",
        f"{main.copy_share:.0%}" if main.copy_share else "-", _ratio(main, comparisons),
    ]  # fmt: skip


def _ratio(row: Row, comparisons: Sequence[Comparison]) -> str:
    """Of the arm's first clock that was compared, with the interval's reach."""
    for one in comparisons:
        if (one.case, one.scheme, one.scale, one.method, one.path, one.clock) == (
            row.case, row.scheme, row.scale, row.method, row.path, row.clock
        ):  # fmt: skip
            return f"{one.ratio:.3f} x {one.base}, {one.verdict}"
    return "-"


def _command(arm: dict[str, Row]) -> str:
    row = next(iter(arm.values()))
    return row.command + (f"  # {row.variant}; {row.verified}" if row.arm == "peer" else "")


def _time(row: Row | None) -> str:
    return _us(row.median_us) if row else "-"


def _rate(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2g}"


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.1f}"


def markdown(result: Result) -> str:
    """The result as Markdown: what it was measured on, the table, the warnings."""
    head = ["case", "path", *_COLUMNS]
    lines = [f"- {line}" for line in header(result)] + [
        "",
        "| " + " | ".join(head) + " |",
        "| --- " * len(head) + "|",
    ]
    for arm in _arms(result.rows):
        row = next(iter(arm.values()))
        name = " ".join([f"`{row.case}`", *([row.scheme] if row.scheme != "q8ta_q8csw_q8to" else [])])
        name += " per-tensor scale" if row.scale == "tensor" else ""
        lines.append("| " + " | ".join([name, row.path, *_cells(arm, result.comparisons)]) + " |")
    for one in result.failures:
        lines.append(
            f"| `{one.case}` | {one.path} | {'MISMATCH' if one.kind == 'mismatch' else 'not run'}:"
            f" {one.reason} |" + " |" * 8
        )
    ran = dict.fromkeys(
        f"{row.path}: {row.variant}; {row.verified}" for row in result.rows if row.arm == "peer"
    )
    return (
        "\n".join(
            [
                *lines,
                "",
                *(f"- {line}" for line in [*ran, *footer(result)]),
                f"- `{result.command}`, {result.created}",
            ]
        )
        + "\n"
    )


def comma_separated(result: Result) -> str:
    """The rows as CSV, one for each arm and clock."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in result.rows:
        values = {name: getattr(row, name) for name in CSV_COLUMNS if hasattr(row, name)}
        values |= {
            "samples": len(row.samples_us),
            "device": result.device["name"],
            "warnings": "; ".join(row.warnings),
        }
        writer.writerow(
            {key: f"{v:.6g}" if isinstance(v, float) else "" if v is None else v for key, v in values.items()}
        )
    return text.getvalue()
