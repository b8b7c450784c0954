"""The first use of a device that nobody timed. A child process times a few candidates for each family of
kernels (``candidates`` of profiles.yaml), and the fastest are stored (`vkq.device.tuner`).

A candidate is timed only after its result was compared with the reference. If compiling it and running it
once takes longer than `COMPILE_S`, the child ends. A candidate that is late, crashes or gives wrong results
is never used on this device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .. import spawn
from . import vulkan
from .capabilities import Capabilities
from .profiles import Family, families
from .tuner import TILES, Measured, Outcome, current, outcome_of, store_families, stored, wanted

CHILD = "vkq.check.measuring"
TOTAL_S = 2.0  # time limit of all candidates together
COMPILE_S = 0.5  # time limit to compile a candidate and run it once
START_S = 30.0  # time limit to start Python, open the device and close it
RESTARTS = 3  # maximum number of restarts of the child, each after a candidate that ended it
LATE = 90  # exit code of a child that ended itself because a candidate took too long
WORTH = 1.1  # factor by which a candidate must be faster to replace the current one

_looked: set[str] = set()  # devices (Capabilities.key) that this process measured, even without result


def is_due(c: Capabilities, again: bool = False) -> bool:
    """Return True if VKQ_TUNE asks to measure this device, and it was not measured or *again* is True."""
    return (again or (c.key not in _looked and stored(c).families is None)) and wanted(c)


def look(c: Capabilities, report: Mapping[str, Any]) -> None:
    """Measure a device that passed its probe, and store the result. *report*: the result of the probe. A
    candidate replaces an earlier choice only if it is faster by the factor `WORTH`."""
    _looked.add(c.key)
    found = measure(c, report, stored(c).families)
    if found is not None:
        store_families(c, found)


def child_of(c: Capabilities, module: str, seconds: float, *options: str) -> spawn.Ended | None:
    """Run vkq's module *module* for a device in a child process. Return None if the child cannot be started,
    or if another device has this index in the child."""
    argv = spawn.command(module, str(c.index), *options)
    ended = spawn.run(argv, seconds, vulkan.instance().drivers.environment) if argv else None
    if ended is None or not ended.started or any(s.get("device", c.key) != c.key for s in ended.said):
        return None
    return ended


def measure(
    c: Capabilities, report: Mapping[str, Any], kept: Mapping[str, Measured] | None
) -> dict[str, Measured] | None:
    """Measure a device and return the measurements by family. *kept*: earlier measurements. Return None if no
    child can be started for the device, or if a child was killed."""
    outcomes: dict[tuple[str, str], Outcome] = {}
    left = TOTAL_S
    for _ in range(RESTARTS + 1):
        skip = [f"--skip={json.dumps(one)}" for one in outcomes]
        options = (f"--report={json.dumps(report)}", f"--seconds={left:.3f}", *skip)
        ended = child_of(c, CHILD, START_S + left, *options)
        if ended is None or ended.kind == "ended":
            return None
        began, spent = _told(ended.said, outcomes)
        if ended.kind == "done" or began is None:
            break
        late = f"(exit code {LATE})" in ended.reason or ended.kind == "late"
        outcomes[began] = f"not compiled and run once in {COMPILE_S:g} s" if late else ended.reason
        left -= spent + (COMPILE_S if late else 0)
        if left <= 0:
            break
    decided = ((f.name, _decided(f, c, outcomes, (kept or {}).get(f.name))) for f in families())
    found = {name: one for name, one in decided if one}
    tiles = {name: outcome for (family, name), outcome in outcomes.items() if family == TILES}
    if costs := {name: one for name, one in tiles.items() if isinstance(one, tuple)}:
        found[TILES] = Measured(min(costs, key=lambda tile: costs[tile][0]), tiles)
    return found


def _told(
    said: Sequence[Mapping[str, Any]], outcomes: dict[tuple[str, str], Outcome]
) -> tuple[tuple[str, str] | None, float]:
    """Add the outcomes that a child reported to *outcomes*. Return the candidate that was running when the
    child ended, or None, and the seconds that the child had spent by then."""
    began, spent = None, 0.0
    for each in said:
        spent = float(each.get("spent", spent))
        if "begin" in each:
            began = (str(each["begin"][0]), str(each["begin"][1]))
        elif "end" in each and began is not None:
            took = each.get("us", each.get("ns"))
            outcomes[began] = f"wrong: {each['wrong']}" if took is None else outcome_of(began[1], took)
            began = None
    return began, spent


def _decided(
    family: Family, c: Capabilities, outcomes: Mapping[tuple[str, str], Outcome], kept: Measured | None
) -> Measured | None:
    """Return a family's measurement. It keeps the candidate in use, unless that one was rejected or another
    is faster by the factor `WORTH`. Return None if the candidate in use was not tried, or if no candidate has
    a time."""
    names = (name for name in family.candidates if (family.name, name) in outcomes)
    tried = {name: outcomes[family.name, name] for name in names}
    times = {name: outcome for name, outcome in tried.items() if isinstance(outcome, float)}
    now = kept.taken if kept and kept.taken in family.candidates else current(family, c)
    if now not in tried or not times:
        return None
    best = min(times, key=lambda name: times[name])
    return Measured(now if now in times and times[now] <= times[best] * WORTH else best, tried)
