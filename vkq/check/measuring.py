"""Measure the speed of kernels on a device. `vkq.device.first_sight` runs this module in a child process,
which times the candidates of each family of kernels and the int8 tiles of matrix units. `vkq tune --export`
measures the costs of all tiles with functions of this module.

The child writes JSON objects for its parent, one per line. The first line is ``{"device": key}``. A candidate
has two lines, ``{"begin": [family, name]}`` and ``{"end": name}``. Both have ``spent``, the seconds since the
start. The second has the result: ``"us": microseconds``, ``"ns": [alone, shared]`` for the cost of a tile, or
``"wrong": reason``. If a candidate takes too long to compile, the process ends with exit code
`first_sight.LATE`.

The cost of a tile is a pair of times of a step along K: the time for a workgroup that runs alone on a core,
and the time for a workgroup that shares its core. They are computed from the times of calls with one
workgroup and of calls with `PER_CORE` workgroups for each core, each at two sizes of K. For a slice-K tile,
both are the time of one more workgroup on each core, divided by the number of its steps. So they include the
end of a workgroup.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import spawn
from ..device import verdict
from ..device.costs import AS_GIVEN, DOT_TILE, INT8, CostTable, in_seed_units
from ..device.first_sight import COMPILE_S, LATE
from ..device.profiles import families, profile
from ..device.tuner import TILES, Choice, current
from ..errors import DeviceLostError, VkqError
from ..kernels import matrix_tiles, matrix_units
from ..kernels.half import kind_of
from ..kernels.half_configs import FLOAT16, PARTS_OF_FLOAT32, STRAIGHT, WORDS
from ..kernels.matrix_tiles import Tiling
from ..layout.extent import BLOCKED
from ..ops.repack import to_layout
from ..probe.matrices import lacking, lacking_half
from ..runtime.device import Device
from ..runtime.plan import Plan
from ..runtime.tensor import Tensor
from ..select.path import COOPMAT, choose_path, without_matrices
from ..shader.catalog import catalog
from .tuning import Chosen, Subject, Trial

SAMPLE_S, LEAST = 0.03, 3  # a candidate is timed for at least SAMPLE_S seconds, and at least LEAST times
TILE_S, LEAST_OF_TILE = 0.005, 5  # minimum number of seconds, and of runs, for the time of a call with a tile
PER_CORE = 2  # workgroups for each core, in the calls that time workgroups that share a core
DEPTHS = (512, 2048)  # the two sizes of K at which a tile is timed
SIDES = (8, 512)  # the heights (equal to the widths) of the two 16-channel images whose repack is timed

Say = Callable[..., None]


class NoCost(VkqError):
    """A tile cannot run on this device, or its results are wrong."""


# ---------------------------------------------------------------------------------------------- the child


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
    for family, name in sorted(jobs, key=lambda job: (job not in now, job[0] != TILES)):
        if (family, name) in skipped:
            continue
        if time.perf_counter() - start > seconds:
            return
        say(begin=[family, name], spent=time.perf_counter() - start)
        told = _cost(device, tiles[name]) if family == TILES else _timed(subjects[family], {family: name})
        say(end=name, spent=time.perf_counter() - start, **told)


def _timed(subject: Subject, choice: Choice) -> dict[str, Any]:
    """Verify and time a candidate. Return ``{"us": microseconds}``, or ``{"wrong": reason}`` if it cannot run
    or gives wrong results."""
    with _in_time():
        trial = subject.tried(choice)
    if trial.error:
        return {"wrong": trial.error}
    trial.sample(SAMPLE_S, LEAST)
    return {"us": trial.time_us}


def _cost(device: Device, timed: TimedTile | TimedRepack) -> dict[str, Any]:
    """Verify and time a tile or a repack. Return ``{"ns": [...]}`` with the two numbers that ``timed.cost``
    returns, or ``{"wrong": reason}``."""
    try:
        with _in_time():
            timed.verify(device)
        return {"ns": list(timed.cost(device))}
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


# ------------------------------------------------------------------------------------- costs of tiles


@dataclasses.dataclass(frozen=True)
class TimedTile:
    """A tile of matrix units to time.

    - table: the name of the tile's cost table
    - choice: the choice of kernels with which a layer runs the tile
    - size: (rows, columns) of the tile
    - scheme, dtype: the scheme of the timed product, and the dtype of x
    - depths: the sizes of K to time
    - step: a cost is the time for this number of elements along K"""

    table: str
    name: str
    choice: Choice
    size: tuple[int, int]
    scheme: str
    dtype: Any
    depths: tuple[int, ...] = ()
    step: int = matrix_tiles.STEP

    def subject(self, device: Device, m: int, n: int, k: int) -> Subject:
        path = {INT8: COOPMAT, AS_GIVEN: without_matrices(device).path}.get(self.table, "auto")
        return Subject.of(device, f"linear[M={m},K={k},N={n}]/scheme={self.scheme}", path)

    def verify(self, device: Device) -> None:
        """Run a product of one tile. Raise NoCost if its result is wrong, or if the layer runs another
        tile."""
        subject = self.subject(device, *self.size, self.depths[0])
        _require(Chosen(subject.layer, self.choice).plan(subject.x.spec), self)
        if error := subject.tried(self.choice).error:
            raise NoCost(f"tile {self.name}: {error}")

    def cost(self, device: Device) -> tuple[float, float]:
        """Return the nanoseconds of a step of the tile, as (time for a workgroup that runs alone on its core,
        time for a workgroup that shares its core). Raises NoCost if they cannot be measured."""
        (rows, columns), first, last = self.size, self.depths[0], self.depths[-1]
        cores = profile(device.capabilities).multiprocessors
        one = [_nanoseconds(device, self, rows, columns, k) for k in self.depths]
        many = [_nanoseconds(device, self, rows * cores, PER_CORE * columns, k) for k in self.depths]
        if self.step == matrix_tiles.WIDE_STEP:
            # slice-K: time one more workgroup on each core, because its end takes longer than a step
            times = [(many[-1] - one[-1]) / (PER_CORE - 1) * self.step / last] * 2
        elif last > first:
            steps = (last - first) / self.step
            times = [(one[-1] - one[0]) / steps, (many[-1] - many[0]) / steps / PER_CORE]
        else:
            times = [one[0], many[0] / PER_CORE]
        if min(times) <= 0:
            raise NoCost(f"{self.choice}: the clock cannot distinguish k = {first} from k = {last}")
        return max(times), times[1]


class TimedRepack:
    """Times the repack of an image into the layout that matrix units read."""

    table, name = AS_GIVEN, "repack"

    def verify(self, device: Device) -> None:
        """Raise NoCost if the repacked image is wrong."""
        image = np.arange(-64, 64, dtype=np.int8).reshape(1, 32, 2, 2)
        if not np.array_equal(to_layout(Tensor.from_numpy(image, device), BLOCKED).numpy(), image):
            raise NoCost("the repack of an image is wrong")

    def cost(self, device: Device) -> tuple[float, float]:
        """Return (nanoseconds for a small image, additional nanoseconds for each million bytes)."""
        small, large = (self._nanoseconds(device, side) for side in SIDES)
        return small, max(large - small, 1.0) * 1e6 / (16 * (SIDES[1] ** 2 - SIDES[0] ** 2))

    def _nanoseconds(self, device: Device, side: int) -> float:
        x, trial = Tensor(device, (1, 16, side, side), "int8"), Trial({}, ())
        trial.record(device, Chosen(partial(to_layout, layout=BLOCKED), {}), x)
        trial.sample(TILE_S, LEAST_OF_TILE)
        return 1e3 * (trial.time_us or math.inf)


def int8_costs() -> list[TimedTile | TimedRepack]:
    """Return what to time for int8 products: first the two entries of the table `AS_GIVEN` (repack and dot
    product), then the tiles of matrix units. Small tiles come first, because they compile fastest."""
    dots = TimedTile(AS_GIVEN, "dot", {}, (DOT_TILE, DOT_TILE), "q8ta_q8csw_q8to", np.int8, DEPTHS)
    return [TimedRepack(), dots, *sorted(int8_tiles(), key=lambda tile: math.prod(tile.size))]


def int8_tiles() -> Iterator[TimedTile]:
    """Yield the tiles of int8 products. Most tiles are timed at two sizes of K. A slice-K tile is timed at
    the larger size only, and a tile without a loop over K at the largest size that it supports."""
    for name in matrix_tiles.tile_names():
        tiling, least = Tiling(name), matrix_tiles.LONG_LEAST
        depths = (matrix_tiles.SHORT_MOST,) if tiling.short else DEPTHS[-1:] if tiling.wide else DEPTHS
        depths = (least, 4 * least) if name == matrix_tiles.LONG else depths
        step = matrix_tiles.WIDE_STEP if tiling.wide else matrix_tiles.STEP
        choice = {matrix_units.KIND: str(tiling)}
        yield TimedTile(INT8, name, choice, tiling.size, "q8ta_q8csw_q8to", np.int8, depths, step)


def float_tiles(device: Device) -> Iterator[TimedTile]:
    """Yield the tiles of products with float activations that the device can run."""
    c = device.capabilities
    for of in (FLOAT16, STRAIGHT, WORDS, PARTS_OF_FLOAT32):
        scheme, dtype = ("q8csw", np.float32) if of is PARTS_OF_FLOAT32 else ("q8csw_f16", np.float16)
        for config in of.able(c) if lacking_half(c, of.form) is None else ():
            variant = config.variant
            choice = {kind_of(of): f"{variant.name}, k in 1"}
            size = int(variant.sizes["BM"]), int(variant.sizes["BN"])
            yield TimedTile(of.cycles, variant.axes["tile"], choice, size, scheme, dtype, DEPTHS)


def measured_costs(device: Device, told: Callable[[str], None] = lambda _: None) -> CostTable:
    """Measure the tiles of all products that the device's matrix units can run. Return the tables of their
    costs, scaled by `in_seed_units`. *told* is called with the name of each tile before the tile is
    measured."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    int8 = int8_costs() if lacking(device.capabilities) is None else ()
    for one in (*int8, *float_tiles(device)):
        told(f"{one.table}: {one.name}")
        with contextlib.suppress(NoCost):
            one.verify(device)
            found.setdefault(one.table, {})[one.name] = one.cost(device)
    return in_seed_units(found)


def _nanoseconds(device: Device, tile: TimedTile, m: int, n: int, k: int) -> float:
    """Return the nanoseconds of the last dispatch of a product with the sizes m, n, k that runs the tile.
    Raises NoCost if the product cannot run on the device, or runs another tile."""
    # Make the layer from data with one row: the layer does not depend on m, and making data with many rows
    # takes long.
    call, trial = Chosen(tile.subject(device, 1, n, k).layer, tile.choice), Trial(tile.choice, ())
    x = Tensor.from_numpy(np.resize(np.arange(k) * 37 % 251 - 125, (m, k)).astype(tile.dtype), device)
    try:
        _require(call.plan(x.spec), tile)
        trial.record(device, call, x, last=True)
    except DeviceLostError:
        raise
    except VkqError as error:
        raise NoCost(str(error)) from error
    trial.sample(TILE_S, LEAST_OF_TILE)
    return 1e3 * (trial.time_us or math.inf)


def _require(plan: Plan, tile: TimedTile) -> None:
    """Raise NoCost if the plan does not run *tile*, for example because the device has too little memory for
    it. A *tile* without a choice (the dot product) is accepted with any tile."""
    ran = (step.program.variant.axes.get("tile") for step in plan.steps if step.program)
    if tile.choice and tile.name not in ran:
        raise NoCost(f"the plan does not run tile {tile.name}; it runs {', '.join(plan.variants)}")
