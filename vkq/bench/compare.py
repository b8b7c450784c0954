"""Compares two benchmark results: finds the cases that became slower by more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkq.bench.result import Result, Row
from vkq.bench.stats import Ratio, median_ratio
from vkq.errors import ArgumentError


@dataclass(frozen=True)
class Change:
    """One measurement that both runs have: the ratio of the medians, new / old, with a bootstrapped 95 %
    interval."""

    old: Row
    new: Row
    ratio: Ratio

    def regressed(self, limit: float) -> bool:
        """Return True if the new run is slower by more than the limit and the interval excludes 1."""
        return self.ratio.value > 1 + limit and self.ratio.low > 1

    def improved(self, limit: float) -> bool:
        """Return True if the new run is faster by more than the limit and the interval excludes 1."""
        return self.ratio.value < 1 / (1 + limit) and self.ratio.high < 1


@dataclass(frozen=True)
class Changes:
    """The result of `compare`: measurements of both runs, rows that only one run has, and the cases with
    wrong results in the new run."""

    changes: list[Change]
    only_old: list[Row]
    only_new: list[Row]
    mismatches: list[str]


def compare(
    old: Result,
    new: Result,
    clocks: Sequence[str] = (),
    any_device: bool = False,
    ignore_path: bool = False,
) -> Changes:
    """Compare the measurements of two runs that have equal case, scheme, scale, method, path and clock.

    *clocks*: compare only these clocks; empty means all. *ignore_path*: compare the fastest path of each run,
    even if the paths differ. Raises ArgumentError in three cases: the runs are of two devices (by UUID and
    name) and *any_device* is False; they have no measurement in common; or in only one of the runs the
    inputs rotated among copies.
    """
    ids = [(run.device["uuid"], run.device["name"]) for run in (old, new)]
    if ids[0] != ids[1] and not any_device:
        raise ArgumentError(
            f"the old run is of {ids[0][1]} ({ids[0][0]}) and the new one of {ids[1][1]} ({ids[1][0]}); times"
            " of two devices say nothing about a change of vkq: measure both on one, or give --any-device"
        )
    before, after = (_by_key(run, clocks, ignore_path) for run in (old, new))
    common = before.keys() & after.keys()
    if not common:
        raise ArgumentError(_nothing_common(old, new))
    apart = sum((before[key].sets == 1) != (after[key].sets == 1) for key in common)
    if apart:
        raise ArgumentError(
            f"in {apart} of {len(common)} measurements one run's inputs take turns and the other's stay in"
            " the device's cache: measure both with or both without --no-ceilings"
        )
    changes = [
        Change(before[key], after[key], median_ratio(after[key].samples_us, before[key].samples_us))
        for key in before
        if key in after
    ]
    only_old, only_new = (
        [row for key, row in one.items() if key not in other]
        for one, other in ((before, after), (after, before))
    )
    return Changes(
        changes, only_old, only_new, [f"{one.case} {one.path}: {one.reason}" for one in new.mismatches]
    )


def _by_key(run: Result, clocks: Sequence[str], ignore_path: bool) -> dict[tuple[str, ...], Row]:
    """Map each key to the fastest row with this key. With *ignore_path*, only rows of vkq count, and the
    keys omit the path."""
    found: dict[tuple[str, ...], Row] = {}
    for row in run.rows:
        if (clocks and row.clock not in clocks) or (ignore_path and row.arm != "vkq"):
            continue
        key = (*row.key[:4], row.clock) if ignore_path else row.key
        if key not in found or row.median_us < found[key].median_us:
            found[key] = row
    return found


def _nothing_common(old: Result, new: Result) -> str:
    """Return the error text for runs without a common measurement: what differs, and the remedy."""
    cases = {row.case for row in old.rows} & {row.case for row in new.rows}
    if not cases:
        return "the two runs have no case in common; measure the same cases"
    what = {
        "path": (r"give --ignore-path", [sorted({row.path for row in run.rows}) for run in (old, new)]),
        "clock": (
            "measure the same --clock",
            [sorted({row.clock for row in run.rows}) for run in (old, new)],
        ),
    }
    apart = [
        f"their {name}s are {', '.join(a)} and {', '.join(b)}: {remedy}"
        for name, (remedy, (a, b)) in what.items()
        if not set(a) & set(b)
    ]
    said = "; ".join(apart) or "in other schemes, scales, methods, paths or clocks"
    return f"the two runs have {len(cases)} cases in common, but no measurement of one: {said}"
