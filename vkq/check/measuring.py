"""Measure the speed of kernels on a device. `vkq.device.first_sight` runs this module in a child process,
which times the candidates of each family of kernels and the int8 tiles of matrix units (`tile_costs`).

The child writes JSON objects for its parent, one per line. The first line is ``{"device": key}``. A candidate
has two lines, ``{"begin": [family, name]}`` and ``{"end": name}``. Both have ``spent``, the seconds since the
start. The second has the result: ``"us": microseconds``, ``"ns": [alone, shared]`` for the cost of a tile, or
``"wrong": reason``. If a candidate takes too long to compile, the process ends with exit code
`first_sight.LATE`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import spawn
from ..device import verdict
from ..device.first_sight import COMPILE_S, LATE
from ..device.profiles import families
from ..device.tuner import TILES, Choice, current
from ..errors import VkqError
from ..runtime.device import Device
from ..select.path import COOPMAT, choose_path, without_matrices
from ..shader.catalog import catalog
from .awake import Awake
from .tile_costs import NoCost, TimedRepack, TimedTile, int8_costs
from .tuning import Subject

SAMPLE_S, LEAST = 0.03, 3  # a candidate is timed for at least SAMPLE_S seconds, and at least LEAST times

Say = Callable[..., None]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the candidates of each family of kernels.")
    parser.add_argument("index", type=int, help="the device's index, as in `vkq devices`")
    parser.add_argument("--report", required=True, help="the results of the device's probe, as JSON")
    parser.add_argument(
        "--seconds", type=float, required=True, help="the time after which no further candidate is measured"
    )
    parser.add_argument("--skip", action="append", default=[], help="[family, candidate], as JSON")
    options = parser.parse_args(argv)
    say = spawn.begin()
    try:
        with Device(options.index) as device:
            say(device=device.capabilities.key)
            verdict.believe(device.capabilities, verdict.Verdict.parse(json.loads(options.report)))
            skipped = {tuple(json.loads(one)) for one in options.skip}
            run(device, say, options.seconds, skipped)
    except VkqError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def run(device: Device, say: Say, seconds: float, skipped: set[tuple[str, ...]]) -> None:
    """Measure every candidate that is not in *skipped*: first the candidates that the device uses now, then
    the tiles of matrix units, then all other candidates. After *seconds*, no further candidate is begun."""
    path = without_matrices(device).path
    _ = catalog().variants  # reads all shaders' YAML before anything is timed
    subjects = {f.name: Subject.of(device, f.problem, path) for f in families() if f.problem}
    jobs = [(family.name, name) for family in families() for name in family.candidates]
    now = {(family.name, current(family, device.capabilities)) for family in families()}
    tiles = {}
    if choose_path(device).path == COOPMAT:
        tiles = {one.name: one for one in int8_costs()}
        jobs += [(TILES, name) for name in tiles]
    start = time.perf_counter()
    awake = Awake(device)
    for family, name in sorted(jobs, key=lambda job: (job not in now, job[0] != TILES)):
        if (family, name) in skipped:
            continue
        if time.perf_counter() - start > seconds:
            return
        say(begin=[family, name], spent=time.perf_counter() - start)
        if family == TILES:
            told = _cost(device, tiles[name], awake)
        else:
            told = _timed(subjects[family], {family: name}, awake)
        say(end=name, spent=time.perf_counter() - start, **told)


def _timed(subject: Subject, choice: Choice, awake: Awake) -> dict[str, Any]:
    """Verify and time a candidate. Return ``{"us": microseconds}``, or ``{"wrong": reason}`` if it cannot run
    or gives wrong results."""
    with _in_time():
        trial = subject.tried(choice)
    if trial.error:
        return {"wrong": trial.error}
    awake()
    trial.sample(SAMPLE_S, LEAST)
    return {"us": trial.time_us}


def _cost(device: Device, timed: TimedTile | TimedRepack, awake: Awake) -> dict[str, Any]:
    """Verify and time a tile or a repack. Return ``{"ns": [...]}`` with the two numbers that ``timed.cost``
    returns, or ``{"wrong": reason}``."""
    try:
        with _in_time():
            timed.verify(device)
        return {"ns": list(timed.cost(device, awake))}
    except NoCost as error:
        return {"wrong": str(error)}


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Context manager: end this process if the block takes longer than `COMPILE_S`."""
    late = threading.Timer(COMPILE_S, os._exit, [LATE])
    late.start()
    try:
        yield
    finally:
        late.cancel()
