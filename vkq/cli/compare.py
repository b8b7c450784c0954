"""``vkq compare``: compare two files that ``vkq bench --json`` wrote. The exit code is 1 if there is a
regression."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from vkq.bench import compare, result
from vkq.bench.fitted import above, distinct
from vkq.bench.report import microseconds
from vkq.bench.timer import CLOCKS
from vkq.check.cases import SCHEMES
from vkq.cli.common import Parsers, add_command, columns, counted, folded
from vkq.errors import ArgumentError


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "compare",
        run,
        "compare two results of vkq bench --json, and fail where the new one is slower",
        ["vkq compare old.json new.json", "vkq compare old.json new.json --fail-above 5% --clock gpu"],
    )
    parser.add_argument("old", type=Path, help="the earlier result of vkq bench --json")
    parser.add_argument("new", type=Path, help="the result that is compared with OLD")
    parser.add_argument(
        "--fail-above",
        metavar="PERCENT",
        default="5%",
        help="report a regression if a time grows by more than this (default: 5%%)",
    )
    parser.add_argument(
        "--clock",
        default="",
        help="compare only these clocks: some of gpu, submit, call, with commas (default: all)",
    )
    parser.add_argument(
        "--ignore-path", action="store_true", help="compare the results of a case even if their paths differ"
    )
    parser.add_argument(
        "--wide", action="store_true", help="print whole names, and the interval of each ratio"
    )
    parser.add_argument("--any-device", action="store_true", help="compare runs of two different devices")
    parser.add_argument("--all", action="store_true", help="also print the cases that did not change")
    parser.add_argument("--json", action="store_true", help="print JSON: {changes: [...], regressions: ...}")


def run(options: argparse.Namespace) -> int:
    """Compare the files. Return exit code 1 if a case became slower by more than the limit, or has wrong
    results in the new run."""
    limit = _percent(options.fail_above)
    clocks = tuple(filter(None, options.clock.split(",")))
    if not set(clocks) <= set(CLOCKS):
        raise ArgumentError(
            f"--clock is {options.clock!r}; it must be some of {', '.join(CLOCKS)}, with commas between"
        )
    old, new = result.read(options.old), result.read(options.new)
    found = compare.compare(old, new, clocks, options.any_device, options.ignore_path)
    regressions = [change for change in found.changes if change.regressed(limit)]
    if options.json:
        _print_json(found, regressions)
    else:
        _print(old, new, found, limit, options)
    return 1 if regressions or found.mismatches else 0


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise ArgumentError(f"--fail-above is {text!r}; write a percentage such as 5%")
    return value


def _verdict(change: compare.Change, limit: float) -> str:
    return "SLOWER" if change.regressed(limit) else "faster" if change.improved(limit) else "same"


def _print(
    old: result.Result,
    new: result.Result,
    found: compare.Changes,
    limit: float,
    options: argparse.Namespace,
) -> None:
    for what, one in (("old", old), ("new", new)):
        print(
            folded(f"{what}  vkq {one.vkq}, {one.created}, {one.device['name']}, {one.device['driver']}", 5)
        )
    judged = [(_verdict(change, limit), change) for change in found.changes]
    counts = Counter(verdict for verdict, _ in judged)
    print(f"{'':6} {'ratio':>6} {'old us':>8} -> {'new us':>8}  case, path, clock")
    shown = sorted(
        (one for one in judged if options.all or one[0] != "same"), key=lambda one: -one[1].ratio.value
    )
    print("".join(f"{line}\n" for line in _lines(shown, options.wide)), end="")
    for label, rows in (("only in the old run", found.only_old), ("only in the new run", found.only_new)):
        if rows and not options.wide:
            print(f"{label}: {counted(len(rows), 'measurement')} (--wide names them)")
        for row in rows if options.wide else ():
            print(f"{label}: {' '.join(filter(None, row.key))}")
    for wrong in found.mismatches:
        print(f"MISMATCH in the new run: {wrong}")
    print(
        f"{counted(len(found.changes), 'measurement')} in common:"
        f" {counts['SLOWER']} slower by more than {100 * limit:.3g} %, {counts['faster']} faster,"
        f" {counts['same']} the same"
    )


def _lines(shown: Sequence[tuple[str, compare.Change]], wide: bool) -> Iterator[str]:
    """Yield one line for each change: the ratio, the two medians in us, and the case. A long name is
    shortened; if two shortened names would be equal, the full name is on a line above. With *wide*, names are
    not shortened, and lines also have the ratio's interval."""
    options = [_options(change) for _, change in shown]
    room = max(20, (columns() or 80) - 38 - max(map(len, options), default=0))
    names = distinct([change.new.case for _, change in shown], room)
    for (verdict, change), rest in zip(shown, options, strict=True):
        row, ratio = change.new, change.ratio
        times = f"{microseconds(change.old.median_us):>8} -> {microseconds(row.median_us):>8}"
        if wide:
            interval = f"({ratio.low:.3f} to {ratio.high:.3f})"
            yield f"{verdict:>6} {ratio.value:7.3f} {interval} {times} us  {row.case} {rest}"
            continue
        name = names[row.case]
        if name is None:
            yield above(row.case, columns())
        yield f"{verdict:>6} {ratio.value:6.3f} {times}  {f'{name} ' if name else ''}{rest}"


def _options(change: compare.Change) -> str:
    """Return a text with the scheme, the scale and the method (unless they are the defaults), the path and
    the clock."""
    old, row = change.old, change.new
    path = row.path if row.path == old.path else f"{old.path} -> {row.path}"
    said = [row.scheme if row.scheme != SCHEMES[0] else "", "per-tensor" if row.scale == "tensor" else ""]
    return " ".join(filter(None, [*said, row.method, path, row.clock]))


def _print_json(found: compare.Changes, regressions: list[compare.Change]) -> None:
    changes = [
        {
            "case": c.new.case,
            "scheme": c.new.scheme,
            "scale": c.new.scale,
            "method": c.new.method,
            "path": c.new.path,
            "clock": c.new.clock,
            "old_us": c.old.median_us,
            "new_us": c.new.median_us,
            "ratio": c.ratio.value,
            "low": c.ratio.low,
            "high": c.ratio.high,
            "regression": c in regressions,
        }
        for c in found.changes
    ]
    print(
        json.dumps(
            {"changes": changes, "regressions": len(regressions), "mismatches": found.mismatches}, indent=2
        )
    )
