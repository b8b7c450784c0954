"""What is measured on a device of a kind that nobody has timed: the fastest of a few candidates for each
family of kernels (``candidates`` of profiles.yaml), once, in a child process.

A candidate counts only after its result was compared with the reference. One that takes longer than
`COMPILE_S` to compile and run once ends its child, and like one that crashes or is wrong it is never taken
here. The answer is kept with the probe's (`vkq.device.verdict`). VKQ_TUNE: "auto" (the default) measures
where neither a rule of profiles.yaml nor a file of ``tuned`` says that such a device was timed; "always"
everywhere; "fresh" as if no file came with vkq; "off" nowhere, and takes nothing that was measured.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .. import spawn
from ..errors import ArgumentError
from . import vulkan
from .capabilities import Capabilities
from .costs import FRESH, INT8, SEED, VARIABLE, in_seed_units
from .profiles import Family, families, profile

MODES = ("auto", "always", FRESH, "off")
CHILD = "vkq.check.measuring"
TOTAL_S = 2.0  # of all candidates together
COMPILE_S = 0.5  # to compile one, and run it once
START_S = 30.0  # to start Python, open the device and close it
RESTARTS = 3  # after candidates that ended the child
LATE = 90  # the exit code of a child that ended itself for the time that a candidate took
TILES = "tiles of matrix units"  # what is measured as a family, though it has no candidates
WORTH = 1.1  # a candidate this much faster replaces the one that is taken now

Outcome = float | str  # microseconds, or why a candidate is out


@dataclasses.dataclass(frozen=True)
class Measured:
    """Of a family of kernels: the candidate taken, and what came of each that was tried. ``costs``: of
    `TILES`, the time of a step of a workgroup alone and of one that shares its core, in nanoseconds."""

    taken: str
    outcomes: Mapping[str, Outcome]
    costs: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        """``64x64 through shared memory, 41.2 us (4x8 in registers 60.1 us; ...)``"""
        others = "; ".join(f"{name} {_shown(o)}" for name, o in self.outcomes.items() if name != self.taken)
        return f"{self.taken}, {_shown(self.outcomes[self.taken])}{f' ({others})' if others else ''}"

    @classmethod
    def parse(cls, value: Any) -> Measured:
        """From the value of a JSON text; ValueError for another form."""
        good = (
            isinstance(value, dict)
            and value.keys() == {"taken", "outcomes", "costs"}
            and isinstance(value["outcomes"], dict)
            and isinstance(value["costs"], dict)
            and all(_is_pair(tile, pair) for tile, pair in value["costs"].items())
            and all(isinstance(o, str) or _is_time(o) for o in value["outcomes"].values())
            and _is_time(value["outcomes"].get(value["taken"]))
        )
        if not good:
            raise ValueError("it is no measurement of a family")
        costs = {tile: (pair[0], pair[1]) for tile, pair in value["costs"].items()}
        return cls(value["taken"], value["outcomes"], costs)


def mode() -> str:
    """What VKQ_TUNE says. Raises ArgumentError for anything else than `MODES`."""
    found = os.environ.get(VARIABLE) or "auto"
    if found not in MODES:
        raise ArgumentError(f"{VARIABLE} is {found!r}; it must be one of {', '.join(MODES)}")
    return found


def wanted(c: Capabilities) -> bool:
    """Whether a device is to be measured."""
    return mode() == "always" or (mode() in ("auto", FRESH) and not profile(c).timed)


def choices(tuning: Mapping[str, Measured] | None) -> tuple[tuple[str, Any], ...]:
    """What measurements say in place of the profile: `Capabilities.choices`."""
    if mode() == "off":
        return ()
    says: dict[str, Any] = {}
    for family in families():
        found = (tuning or {}).get(family.name)
        says |= family.candidates.get(found.taken, {}) if found else {}
    tiles = (tuning or {}).get(TILES)
    says |= in_seed_units({INT8: tiles.costs}) if tiles else {}
    return tuple(sorted(says.items()))


def measure(
    c: Capabilities, report: Mapping[str, Any], kept: Mapping[str, Measured] | None
) -> dict[str, Measured] | None:
    """The measurements of a device that passed its probe with this *report*; *kept* are earlier ones, which
    yield to faster candidates alone. None where no child answers, or somebody ended it."""
    outcomes: dict[tuple[str, str], Outcome] = {}
    costs: dict[str, tuple[float, float]] = {}
    left = TOTAL_S
    for _ in range(RESTARTS + 1):
        skip = [f"--skip={json.dumps(one)}" for one in outcomes]
        options = (str(c.index), f"--report={json.dumps(report)}", f"--seconds={left:.3f}", *skip)
        argv = spawn.command(CHILD, *options)
        ended = spawn.run(argv, START_S + left, vulkan.instance().drivers.environment) if argv else None
        if ended is None or not ended.started or ended.kind == "ended":
            return None
        if any(said.get("device", c.key) != c.key for said in ended.said):
            return None
        began, spent = _told(ended.said, outcomes)
        costs |= {str(s["end"]): tuple(s["ns"]) for s in ended.said if _is_pair(s.get("end"), s.get("ns"))}
        if ended.kind == "done" or began is None:
            break
        late = f"(exit code {LATE})" in ended.reason or ended.kind == "late"
        outcomes[began] = f"not compiled and run once in {COMPILE_S:g} s" if late else ended.reason
        left -= spent + (COMPILE_S if late else 0)
        if left <= 0:
            break
    decided = ((f.name, _decided(f, c, outcomes, (kept or {}).get(f.name))) for f in families())
    found = {name: one for name, one in decided if one}
    if costs:
        tried = {name: outcome for (family, name), outcome in outcomes.items() if family == TILES}
        found[TILES] = Measured(min(costs, key=lambda tile: costs[tile][0]), tried, costs)
    return found


def _told(
    said: Sequence[Mapping[str, Any]], outcomes: dict[tuple[str, str], Outcome]
) -> tuple[tuple[str, str] | None, float]:
    """Puts what a child said into *outcomes*; the candidate that it was at when it ended, and the seconds
    until then."""
    began, spent = None, 0.0
    for each in said:
        spent = float(each.get("spent", spent))
        if "begin" in each:
            began = (str(each["begin"][0]), str(each["begin"][1]))
        elif "end" in each and began is not None:
            wrong, us = each.get("wrong"), each.get("us")
            outcomes[began] = us if isinstance(us, float) and _is_time(us) else f"wrong: {wrong}"
            began = None
    return began, spent


def _decided(
    family: Family, c: Capabilities, outcomes: Mapping[tuple[str, str], Outcome], kept: Measured | None
) -> Measured | None:
    """The candidate to take: what is taken now, unless it is out or another is clearly faster; None where the
    time was over before that was known."""
    names = (name for name in family.candidates if (family.name, name) in outcomes)
    tried = {name: outcomes[family.name, name] for name in names}
    times = {name: outcome for name, outcome in tried.items() if isinstance(outcome, float)}
    now = kept.taken if kept and kept.taken in family.candidates else current(family, c)
    if now not in tried or not times:
        return None
    best = min(times, key=lambda name: times[name])
    return Measured(now if now in times and times[now] <= times[best] * WORTH else best, tried)


def current(family: Family, c: Capabilities) -> str:
    """The candidate that the profile amounts to, or the first."""
    known = profile(dataclasses.replace(c, choices=()))
    names = (
        name
        for name, says in family.candidates.items()
        if all(getattr(known, field) == value for field, value in says.items())
    )
    return next(names, next(iter(family.candidates)))


def _is_time(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0


def _is_pair(tile: Any, value: Any) -> bool:
    return tile in SEED[INT8] and isinstance(value, list) and len(value) == 2 and all(map(_is_time, value))


def _shown(outcome: Outcome) -> str:
    return outcome if isinstance(outcome, str) else f"{outcome:.1f} us"
