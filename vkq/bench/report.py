"""Write a result as a table for the terminal, as Markdown or as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence

from vkq.bench.fitted import above
from vkq.bench.labels import Labels
from vkq.bench.result import INTERRUPTED, Comparison, Failure, Result, Row, Total
from vkq.check.cases import Case

Cells = list[str]
_WIDE = (
    "gpu us", "p20..p80", "submit us", "call us", "host us", "GOP/s", "of ceiling", "GB/s", "of copy",
    "ratio",
)  # fmt: skip
CSV_COLUMNS = (
    "case", "scheme", "scale", "method", "path", "arm", "variant", "clock", "median_us", "p20_us", "p80_us",
    "samples", "dispatches", "passes", "sets", "gops", "gbps", "compute_ceiling", "compute_share",
    "copy_share", "overhead_us", "verified", "device", "warnings", "command",
)  # fmt: skip


def header(result: Result) -> list[str]:
    """Return the lines above the table: device, host, ceilings."""
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


_WIDE_WIDTHS = (11, 19, 11, 11, 9, 10, 18, 9, 8, 24)
# Widths of the columns after the case's name. The name gets what remains of the terminal's width, but room
# for at least _LEAST characters.
_WIDTHS = {"path": 8, "us": 9, "p20..p80": 20, "GOP/s": 8, "of ceiling": 10}
_LEAST = 20  # minimum number of characters of a case's name


class Table:
    """The table for a terminal. Each line is an arm: a path of vkq, or another library.

    - *cases*: the cases whose names are printed.
    - *columns*: the width of the terminal; None: no limit. A name that does not fit is printed above its
      rows (`Labels`).
    - *clock*: the name of the clock in the head of the table. Each line has the time of the first measured
      clock of gpu, submit, call and host.
    - *wide*: each line also has the times of every clock, all rates, and the command that repeats the
      measurement.
    """

    def __init__(
        self, cases: Iterable[Case | str], columns: int | None = None, wide: bool = False, clock: str = "gpu"
    ):
        self.wide, self.clock = wide, clock
        self.columns = columns
        room = max(columns - sum(_WIDTHS.values()) - len(_WIDTHS), _LEAST) if columns else None
        self._labels = Labels(cases, room)
        self.letters = max(len("case"), self._labels.letters)

    def head(self) -> str:
        """Return the line of column names."""
        if self.wide:
            cells = [name.rjust(width) for name, width in zip(_WIDE, _WIDE_WIDTHS, strict=True)]
            return " ".join(cells) + "  command"
        path, _, *rates = _WIDTHS
        return self._line("case", [path, f"{self.clock} us", *rates])

    def lines(
        self, rows: Sequence[Row], comparisons: Sequence[Comparison], failures: Sequence[Failure]
    ) -> list[str]:
        """Return the table's lines for these rows and failures. The line of a failure has the reason and
        the command that repeats the measurement."""
        found: list[str] = []
        said = ""
        for arm in _arms(rows):
            label, name = self._labels.of(_first(arm))
            if label and label != said and not self.wide:
                found.append(above(label, self.columns))
            found.append(self._arm(arm, name, comparisons))
            said = label
        for one in failures:
            word = "MISMATCH" if one.kind == "mismatch" else "not run"
            found.append(self._failed(f"{word:>11} {one.path}: {one.reason}", one.command))
        return found

    def _failed(self, text: str, command: str) -> str:
        """Return the text of a failure and its command, on one line if the terminal's width is not known.
        Else wrap the text, and put the command on a separate line, so that a user can copy it."""
        if not self.columns:
            return f"{text}  {command}"
        margin = " " * 12
        folded = textwrap.fill(
            text, max(self.columns, 42), subsequent_indent=margin, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        return f"{folded}\n{margin}again: {command}"

    def totals(self, totals: Sequence[Total]) -> list[str]:
        """Return one line for each total: the times of a network's layers on one path by one clock."""
        return [
            f"total    {_network(one)} on {one.path}: {microseconds(one.time_us)} us ({one.clock} clock),"
            f" {_rate(one.gops)} GOP/s"
            + (f", {one.compute_share:.0%} of {one.compute_ceiling}" if one.compute_share else "")
            + (f"; {one.missing} of its shapes have no time and are left out" if one.missing else "")
            for one in totals
        ]

    def _arm(self, arm: dict[str, Row], name: str, comparisons: Sequence[Comparison]) -> str:
        if self.wide:
            cells = zip(_cells(arm, comparisons), _WIDE_WIDTHS, strict=True)
            return " ".join(cell.rjust(width) for cell, width in cells) + f"  {_command(arm)}"
        row = _first(arm)
        rate, share = _speed(row)
        spread = f"{microseconds(row.p20_us)}..{microseconds(row.p80_us)}"
        line = self._line(
            name,
            [row.path, microseconds(row.median_us), spread, rate if row.clock != "host" else "-", share],
        )
        ratio = _ratio(row, comparisons)
        said = [] if ratio == "-" else [ratio]
        if ratio != "-" and row.scheme == "model":
            times, _, base = ratio.partition(" x ")
            said = [f"takes {times} of the time of {base}"]
        said += [f"{row.variant}; {row.verified}"] if row.arm == "peer" or row.path == "vkq" else []
        return "\n".join([line, *(self._below(text) for text in said)])

    def _below(self, text: str) -> str:
        """Return a text for the lines below a row: indented, and wrapped at the terminal's width."""
        margin = " " * min(self.letters + 2, 20)
        width = max(self.columns or 0, len(margin) + 30) if self.columns else len(margin) + len(text)
        return textwrap.fill(text, width, initial_indent=margin, subsequent_indent=margin)

    def _line(self, name: str, cells: list[str]) -> str:
        path, *numbers = cells
        widths = list(_WIDTHS.values())
        shown = " ".join(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
        return f"{name:{self.letters}} {path:{widths[0]}} {shown}"


def _network(one: Total) -> str:
    scheme = "" if one.scheme == "q8ta_q8csw_q8to" else f" {one.scheme}"
    return f"{one.network}{scheme}{' per-tensor scale' if one.scale == 'tensor' else ''}, {one.layers} layers"


def footer(result: Result) -> list[str]:
    """Return the lines below the table: each warning with its number of rows, the number of mismatches, the
    number of interrupted cases, and the duration of the run."""
    counts: dict[str, int] = {}
    for row in result.rows:
        for warning in row.warnings:
            counts[warning] = counts.get(warning, 0) + 1
    lines = [f"warning: {warning} ({count} of {len(result.rows)} times)" for warning, count in counts.items()]
    wrong = len(result.mismatches)
    if wrong:
        lines.append(
            f"{wrong} MISMATCH: these give wrong numbers on this device; please report them with `vkq devices"
            " --json`"
        )
    left = sum(one.reason == INTERRUPTED for one in result.failures)
    if left:
        lines.append(f"interrupted: {left} of the cases have no time, or not on every clock")
    arms = len(_arms(result.rows))
    lines.append(
        f"{arms} arm{'s' * (arms != 1)} in {result.seconds:.0f} s; every time was taken after its numbers had"
        " been verified"
    )
    return lines


def _arms(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """Group rows that differ only in the clock. Return {clock: row} for each group."""
    found: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.key[:-1], {})[row.clock] = row
    return list(found.values())


def _cells(arm: dict[str, Row], comparisons: Sequence[Comparison]) -> Cells:
    gpu, submit, call, host = (arm.get(clock) for clock in ("gpu", "submit", "call", "host"))
    main = _first(arm)
    return [
        _time(gpu), f"{microseconds(main.p20_us)}..{microseconds(main.p80_us)}", _time(submit), _time(call),
        _time(host), _rate(main.gops) if main is not host else "-",
        f"{main.compute_share:.0%} {main.compute_ceiling}" if main.compute_share else "-",
        _rate(main.gbps) if main is not host else "-",
        f"{main.copy_share:.0%}" if main.copy_share else "-", _ratio(main, comparisons),
    ]  # fmt: skip


def _speed(row: Row) -> tuple[str, str]:
    """Return the cells GOP/s and its share of the path's ceiling; without arithmetic, GB/s and its share of
    the copy rate."""
    if row.operations:
        return _rate(row.gops), f"{row.compute_share:.0%}" if row.compute_share else "-"
    return f"{_rate(row.gbps)} GB", f"{row.copy_share:.0%} copy" if row.copy_share else "-"


def _first(arm: dict[str, Row]) -> Row:
    """Return the arm's row for the first of the clocks gpu, submit, call and host that was measured."""
    return next(arm[clock] for clock in ("gpu", "submit", "call", "host") if clock in arm)


def _ratio(row: Row, comparisons: Sequence[Comparison]) -> str:
    """Return a text with (row's time / baseline's time) and the verdict; "-" if the row has no baseline."""
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
    return microseconds(row.median_us) if row else "-"


def _rate(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2g}"


def microseconds(value: float) -> str:
    """Format a time in microseconds: three or four significant digits below 1,000, else a whole number."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.1f}"


def markdown(result: Result) -> str:
    """Return the result as Markdown: device and host, the table, the warnings."""
    head = ["case", "path", *_WIDE]
    lines = [f"- {line}" for line in header(result)] + [
        "",
        "| " + " | ".join(head) + " |",
        "| --- " * len(head) + "|",
    ]
    for arm in _arms(result.rows):
        row = next(iter(arm.values()))
        name = " ".join([f"`{row.case}`", *([row.scheme] if row.scheme != "q8ta_q8csw_q8to" else [])])
        name += " per-tensor scale" if row.scale == "tensor" else ""
        name += f" {row.method}" if row.method else ""
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
                *(f"- {line}" for line in [*ran, *Table(()).totals(result.totals), *footer(result)]),
                f"- `{result.command}`, {result.created}",
            ]
        )
        + "\n"
    )


def comma_separated(result: Result) -> str:
    """Return the result as CSV, with one line for each row (one arm by one clock)."""
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
