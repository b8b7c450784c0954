"""Time the candidates of each family of kernels on one device, in a child of `vkq.device.measured`. Each
candidate is compiled, run once and compared with the reference before it is timed.

The child sends the parent one JSON object a line: ``{"device": key}``, then for each candidate ``{"begin":
[family, name]}`` and ``{"end": ..., "us": microseconds}`` or ``"wrong": why``, each with the seconds
``spent`` so far. A candidate that takes too long to compile ends the process with the exit code
`measured.LATE`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from .. import spawn
from ..device import verdict
from ..device.costs import INT8, SEED
from ..device.measured import COMPILE_S, LATE, TILES, current
from ..device.profiles import families
from ..errors import DeviceLostError, VkqError
from ..kernels.matrix_tiles import Tiling
from ..ops.conv2d import Conv2d
from ..ops.expanded import applied
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..select.path import COOPMAT, choose_path, without_matrices
from ..shader.catalog import catalog
from .catalogue import Check, check_of
from .compare import layer
from .tile_costs import NoCost, check_tile, int8_cost

SAMPLE_S = 0.03  # seconds for each candidate, which has at least LEAST runs
LEAST = 3

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
    """Measure every candidate that is not in *skipped*: first the current choices, then the tiles of matrix
    units."""
    path = without_matrices(device).path
    _ = catalog().variants  # reads all shaders' YAML before anything is timed
    subjects = {f.name: _subject(device, f.problem, path) for f in families() if f.problem}
    jobs = {
        (family.name, name): partial(subjects[family.name].tried, candidate)
        for family in families() for name, candidate in family.candidates.items()
    }  # fmt: skip
    now = {(family.name, current(family, device.capabilities)) for family in families()}
    if choose_path(device).path == COOPMAT:
        # Small tiles compile fastest.
        by_size = sorted(SEED[INT8], key=lambda tile: math.prod(Tiling(tile).size))
        jobs |= {(TILES, tile): partial(_tile, device, tile) for tile in by_size}
    start = time.perf_counter()
    for key in sorted(jobs, key=lambda key: (key not in now, key[0] != TILES)):
        if key in skipped:
            continue
        if time.perf_counter() - start > seconds:
            return
        say(begin=list(key), spent=time.perf_counter() - start)
        said = jobs[key]()
        say(end=key[1], spent=time.perf_counter() - start, **said)


def _tile(device: Device, tile: str) -> dict[str, Any]:
    """Return ``{"us": time, "ns": [alone, shared]}`` for one step of k, or ``{"wrong": why}``."""
    late = threading.Timer(COMPILE_S, os._exit, [LATE])
    try:
        late.start()
        check_tile(device, tile)
        late.cancel()
        alone, shared = int8_cost(device, tile)
    except NoCost as error:
        return {"wrong": str(error)}
    finally:
        late.cancel()
    return {"us": shared / 1e3, "ns": [alone, shared]}


def _subject(device: Device, problem: str, path: str) -> _Subject:
    """Return the `_Subject` to time: a layer, or a convolution and the depthwise convolution that reads its
    result (``conv2d[...] > conv2d[...]``)."""
    first, *second = (check_of(name) for name in problem.split(" > "))
    return _Pair(device, first, second[0]) if second else _Subject(device, first, path)


class _Subject:
    """The representative problem of a family, on a device."""

    def __init__(self, device: Device, check: Check, path: str):
        self.device, self.check, self.path = device, check, path
        self.data = check.data()
        self.given = check.input(self.data)
        self.expected = check.expected(self.data, self.given, device)
        self.x = Tensor.from_numpy(self.given, device)

    def made(self) -> Callable[[Tensor], Tensor]:
        """Return a new layer, whose call is timed."""
        return layer(self.device, self.check, self.data, self.path)

    def tried(self, says: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``{"us": time}``, or ``{"wrong": why}``."""
        c = self.device.capabilities
        self.device.capabilities = dataclasses.replace(c, choices=tuple(says.items()))
        late = threading.Timer(COMPILE_S, os._exit, [LATE])
        try:
            late.start()
            subject = self.made()
            wrong = self.expected.mismatch(subject(self.x).numpy())
            late.cancel()
            return {"wrong": wrong} if wrong else {"us": self._timed(subject)}
        except DeviceLostError:
            raise
        except VkqError as error:
            return {"wrong": f"{type(error).__name__}: {error}"}
        finally:
            late.cancel()
            self.device.capabilities = c

    def _timed(self, subject: Any) -> float:
        """Return the shortest time of a run, because other programs can only add time."""
        with self.device.record() as probe:
            subject(self.x)
        timed = probe.dispatches if self.device.capabilities.timestamp_valid_bits else 0
        with self.device.record(timestamps=timed) as recording:
            subject(self.x)
        least, runs, end = float("inf"), 0, time.perf_counter() + SAMPLE_S
        while runs < LEAST or time.perf_counter() < end:
            start = time.perf_counter()
            recording.run()
            host = (time.perf_counter() - start) * 1e6
            least = min(least, sum(recording.gpu_times_us()) if timed else host)
            runs += 1
        return max(least, 1e-3)


class _Pair(_Subject):
    """Two convolutions, of which the second reads the result of the first, on matrix units if the device has
    any."""

    def __init__(self, device: Device, first: Check, second: Check):
        super().__init__(device, first, "auto")
        self.second = second
        data, between = second.data(), self.expected.y
        self.behind = dataclasses.replace(data, x=between, x_q=self.data.y_q)
        self.expected = second.expected(self.behind, between, device)

    def made(self) -> Callable[[Tensor], Tensor]:
        pairs = (self.check, self.data), (self.second, self.behind)
        one, other = (cast(Conv2d, layer(self.device, *pair, self.path)) for pair in pairs)
        return lambda x: applied(one, other, x)
