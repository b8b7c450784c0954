"""Measure a device at its first use, unless kernels were timed on a device of its model. A child process
times a few candidates of each family of kernels (``candidates`` of profiles.yaml). The fastest candidates
are stored (`vkq.device.tuner`).

A candidate is timed only after its result was compared with the reference. The child ends if it takes
longer than `COMPILE_S` to compile a candidate and run it once. A candidate that is too slow, crashes or
gives wrong results is never used on this device.
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
TOTAL_S = 2.0  # time limit for all candidates together, in seconds
COMPILE_S = 0.5  # time limit for compiling a candidate and running it once, in seconds
START_S = 30.0  # time limit for starting Python and for opening and closing the device, in seconds
RESTARTS = 3  # maximum number of new child processes, each after a candidate that ended a child
LATE = 90  # exit code of a child that ends itself because a candidate takes too long
WORTH = 1.1  # a candidate replaces the candidate in use if it is faster by this factor

_looked: set[str] = set()  # the devices (Capabilities.key) that this process tried to measure


def is_due(c: Capabilities, again: bool = False) -> bool:
    """Return True if VKQ_TUNE allows measuring this device and it has no measurement. *again*: ignore an
    earlier measurement."""
    return (again or (c.key not in _looked and stored(c).families is None)) and wanted(c)


def look(c: Capabilities, report: Mapping[str, Any]) -> None:
    """Measure a device that passed its probe, and store the result. *report*: the report of the probe."""
    _looked.add(c.key)
    found = measure(c, report, stored(c).families)
    if found is not None:
        store_families(c, found)


def child_of(c: Capabilities, module: str, seconds: float, *options: str) -> spawn.Ended | None:
    """Run the module *module* of vkq in a child process, with the device's index and *options* as
    arguments. Return None if the child cannot be started, or if the index belongs to another device in the
    child."""
    argv = spawn.command(module, str(c.index), *options)
    ended = spawn.run(argv, seconds, vulkan.instance().drivers.environment) if argv else None
    if ended is None or not ended.started or any(s.get("device", c.key) != c.key for s in ended.said):
        return None
    return ended


def measure(
    c: Capabilities, report: Mapping[str, Any], kept: Mapping[str, Measured] | None
) -> dict[str, Measured] | None:
    """Measure a device. Return {name of the family: its measurement}, or None if no child process can be
    started for the device or a child was killed. *report*: the report of the probe. *kept*: the earlier
    measurements."""
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
    """Add the outcomes in the messages *said* of a child process to *outcomes*. Return (the candidate that
    was running when the child ended, or None; the seconds that the child had spent by then)."""
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
    """Return the measurement of a family. It keeps the candidate in use, unless this candidate was rejected
    or another is faster by the factor `WORTH`. Return None if the candidate in use was not tried, or no
    candidate has a time. *kept*: the family's earlier measurement, or None."""
    names = (name for name in family.candidates if (family.name, name) in outcomes)
    tried = {name: outcomes[family.name, name] for name in names}
    times = {name: outcome for name, outcome in tried.items() if isinstance(outcome, float)}
    now = kept.taken if kept and kept.taken in family.candidates else current(family, c)
    if now not in tried or not times:
        return None
    best = min(times, key=lambda name: times[name])
    return Measured(now if now in times and times[now] <= times[best] * WORTH else best, tried)
