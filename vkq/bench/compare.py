"""Compare the results of two benchmark runs: find the cases whose time grew by more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkq.bench.result import Result, Row
from vkq.bench.stats import Ratio, median_ratio
from vkq.errors import ArgumentError


@dataclass(frozen=True)
class Change:
    """The change of one measurement between two runs."""

    old: Row
    new: Row
    ratio: Ratio  # new median / old median, with a bootstrapped 95 % interval

    def regressed(self, limit: float) -> bool:
        """Return True if the new run is slower by more than *limit* (a share: 0.1 is 10 %) and the ratio's
        interval excludes 1."""
        return self.ratio.value > 1 + limit and self.ratio.low > 1

    def improved(self, limit: float) -> bool:
        """Return True if the old run is slower by more than *limit* and the ratio's interval excludes 1."""
        return self.ratio.value < 1 / (1 + limit) and self.ratio.high < 1


@dataclass(frozen=True)
class Changes:
    """The result of `compare`."""

    changes: list[Change]  # of the measurements that both runs have
    only_old: list[Row]  # the rows that only the old run has
    only_new: list[Row]  # the rows that only the new run has
    mismatches: list[str]  # the cases with wrong results in the new run


def compare(
    old: Result,
    new: Result,
    clocks: Sequence[str] = (),
    any_device: bool = False,
    ignore_path: bool = False,
) -> Changes:
    """Compare each measurement of the old run with that measurement of the new run: same case, scheme,
    scale, method, path and clock.

    - *clocks*: compare only these clocks; empty means all.
    - *any_device*: allow runs of two devices.
    - *ignore_path*: compare the fastest path of each run, even if the paths differ.

    Raises ArgumentError in three cases:

    - the runs are of two devices (by UUID and name), and *any_device* is False;
    - the runs have no measurement in common;
    - only one of the runs rotated the inputs of a case among copies, to keep them out of the cache.
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
            f"in {apart} of {len(common)} measurements one run rotated its inputs among copies, and the"
            " other kept them in the device's cache: measure both with or both without --no-ceilings"
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
    """Return {key of the measurement: its fastest row}. With *ignore_path*, keys do not contain the path,
    and rows of other libraries are left out."""
    found: dict[tuple[str, ...], Row] = {}
    for row in run.rows:
        if (clocks and row.clock not in clocks) or (ignore_path and row.arm != "vkq"):
            continue
        key = (*row.key[:4], row.clock) if ignore_path else row.key
        if key not in found or row.median_us < found[key].median_us:
            found[key] = row
    return found


def _nothing_common(old: Result, new: Result) -> str:
    """Return the error text for two runs without a common measurement: the difference and the remedy."""
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
