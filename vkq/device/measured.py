"""Measurements on kinds of devices that were never timed: find the fastest of a few candidates for each
kernel family (``candidates`` of profiles.yaml) once, in a child process.

A candidate counts only after its result was compared with the reference. A candidate that takes longer than
`COMPILE_S` to compile and run once ends its child. Candidates that are slow, crash or give wrong results are
never used on this device. The result is kept with the probe's report (`vkq.device.verdict`).

VKQ_TUNE: "auto" (the default) measures a device that neither a rule of profiles.yaml nor a file of ``tuned``
covers; "always" measures on every device; "fresh" ignores the files that come with vkq; "off" never measures,
and ignores measurements.
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
TOTAL_S = 2.0  # time limit of all candidates together
COMPILE_S = 0.5  # time limit to compile a candidate and run it once
START_S = 30.0  # time limit to start Python, open the device and close it
RESTARTS = 3  # maximum number of restarts of the child, each after a candidate that ended it
LATE = 90  # exit code of a child that ended itself because a candidate took too long
TILES = "tiles of matrix units"  # a family of kernels without candidates
WORTH = 1.1  # factor by which a candidate must be faster to replace the current one

Outcome = float | str  # microseconds, or why a candidate is rejected


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measurement of a family of kernels: the chosen candidate, and the outcome of each candidate that
    was tried. ``costs``: for `TILES`, the time of a step in nanoseconds, of a workgroup that runs alone on a
    core and of one that shares it."""

    taken: str
    outcomes: Mapping[str, Outcome]
    costs: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        """Return ``64x64 through shared memory, 41.2 us (4x8 in registers 60.1 us; ...)``."""
        others = "; ".join(f"{name} {_shown(o)}" for name, o in self.outcomes.items() if name != self.taken)
        return f"{self.taken}, {_shown(self.outcomes[self.taken])}{f' ({others})' if others else ''}"

    @classmethod
    def parse(cls, value: Any) -> Measured:
        """Return the value of a JSON text; ValueError if its form is wrong."""
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
            raise ValueError("it is not a measurement of a family of kernels")
        costs = {tile: (pair[0], pair[1]) for tile, pair in value["costs"].items()}
        return cls(value["taken"], value["outcomes"], costs)


def mode() -> str:
    """Return the value of VKQ_TUNE. Raises ArgumentError if it is not in `MODES`."""
    found = os.environ.get(VARIABLE) or "auto"
    if found not in MODES:
        raise ArgumentError(f"{VARIABLE} is {found!r}; it must be one of {', '.join(MODES)}")
    return found


def wanted(c: Capabilities) -> bool:
    """Return True if a device should be measured."""
    return mode() == "always" or (mode() in ("auto", FRESH) and not profile(c).timed)


def choices(tuning: Mapping[str, Measured] | None) -> tuple[tuple[str, Any], ...]:
    """Return the measured choices, which replace fields of the profile (`Capabilities.choices`)."""
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
    """Return the measurements of a device that passed its probe with this *report*. *kept*: earlier
    measurements; a choice in them is replaced only by a candidate that is clearly faster. Return None if no
    child answers, or if the child was killed."""
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
    """Add the outcomes that a child reported to *outcomes*; return (the candidate that was running when the
    child ended, or None; the seconds until the child ended)."""
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
    """Return the candidate to use: the current one, unless it was rejected or another is clearly faster; None
    if the time limit came before a decision."""
    names = (name for name in family.candidates if (family.name, name) in outcomes)
    tried = {name: outcomes[family.name, name] for name in names}
    times = {name: outcome for name, outcome in tried.items() if isinstance(outcome, float)}
    now = kept.taken if kept and kept.taken in family.candidates else current(family, c)
    if now not in tried or not times:
        return None
    best = min(times, key=lambda name: times[name])
    return Measured(now if now in times and times[now] <= times[best] * WORTH else best, tried)


def current(family: Family, c: Capabilities) -> str:
    """Return the name of the candidate whose fields equal the profile's, else the first candidate."""
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
