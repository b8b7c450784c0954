"""Two runs of the same cases: which became slower, beyond the noise of their own samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkq.bench.result import Result, Row
from vkq.bench.stats import Ratio, median_ratio
from vkq.errors import ArgumentError


@dataclass(frozen=True)
class Change:
    """One measurement of both runs: the ratio of its medians, new over old, with a bootstrapped 95 %
    interval."""

    old: Row
    new: Row
    ratio: Ratio

    def regressed(self, limit: float) -> bool:
        """Slower by more than the limit, and surely slower: the interval leaves 1 out."""
        return self.ratio.value > 1 + limit and self.ratio.low > 1

    def improved(self, limit: float) -> bool:
        """As `regressed`, the other way round."""
        return self.ratio.value < 1 / (1 + limit) and self.ratio.high < 1


@dataclass(frozen=True)
class Comparison:
    """The changes, the measurements that only one run has, and the cases whose numbers are wrong in the new
    run."""

    changes: list[Change]
    only_old: list[Row]
    only_new: list[Row]
    mismatches: list[str]


def compare(old: Result, new: Result, clocks: Sequence[str] = (), any_device: bool = False) -> Comparison:
    """The measurements of two runs side by side, by case, scheme, path and clock.

    *clocks*: only these; all where empty. Raises ArgumentError where the runs are of two devices (by UUID and
    name), unless *any_device*, and where they have no measurement in common.
    """
    ids = [(run.device["uuid"], run.device["name"]) for run in (old, new)]
    if ids[0] != ids[1] and not any_device:
        raise ArgumentError(
            f"the old run is of {ids[0][1]} ({ids[0][0]}) and the new one of {ids[1][1]} ({ids[1][0]}); times"
            " of two devices say nothing about a change of vkq: measure both on one, or give --any-device"
        )
    before, after = (
        {row.key: row for row in run.rows if not clocks or row.clock in clocks} for run in (old, new)
    )
    if not before.keys() & after.keys():
        raise ArgumentError("the two runs have no case, path and clock in common; measure the same cases")
    changes = [
        Change(before[key], after[key], median_ratio(after[key].samples_us, before[key].samples_us))
        for key in before
        if key in after
    ]
    only_old, only_new = (
        [row for key, row in one.items() if key not in other]
        for one, other in ((before, after), (after, before))
    )
    return Comparison(
        changes, only_old, only_new, [f"{one.case} {one.path}: {one.reason}" for one in new.mismatches]
    )
