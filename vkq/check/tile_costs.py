"""Measure the costs of the tiles of matrix units, which decide the choice of a tile (`vkq.device.costs`).

The cost of a tile is a pair of times of a step along K: the time for a workgroup that runs alone on a core,
and the time for a workgroup that shares its core. They are computed from the times of calls with one
workgroup and of calls with several workgroups for each core, each at two sizes of K. There are two
exceptions:

- A tile without a loop over K: the two times are those of all of K, without the start of a dispatch.
- A slice-K tile: both are the time of one more workgroup on each core, divided by the number of its steps.
  So they include the end of a workgroup, which takes longer than a step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from ..device.costs import AS_GIVEN, DOT_TILE, INT8, CostTable, in_seed_units
from ..device.profiles import profile
from ..device.tuner import Choice
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
from ..select.path import COOPMAT, without_matrices
from .awake import Awake, filled
from .tuning import Chosen, Subject, Trial

TILE_S, LEAST_OF_TILE = 0.005, 5  # minimum number of seconds, and of runs, for the time of a call with a tile
# Workgroups for each core in the calls that time workgroups that share a core. Eight keep a core busy also
# with the smallest tiles. PAIR: for slice-K tiles.
PER_CORE, PAIR = 8, 2
# Results for each core in the two calls that time a tile without a loop over K. Such a tile mostly writes
# results, so the calls of all tiles write the same number.
RESULTS = (1 << 16, 3 << 16)
DEPTHS = (512, 2048)  # the two sizes of K at which a tile is timed
SIDES = (8, 512)  # the heights (equal to the widths) of the two 16-channel images whose repack is timed


class NoCost(VkqError):
    """A tile cannot run on this device, or its results are wrong."""


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
    dtype: str
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

    def cost(self, device: Device, awake: Awake) -> tuple[float, float]:
        """Return the nanoseconds of a step of the tile, as (time for a workgroup that runs alone on its core,
        time for a workgroup that shares its core). Raises NoCost if they cannot be measured."""
        (rows, columns), first, last = self.size, self.depths[0], self.depths[-1]
        cores = profile(device.capabilities).multiprocessors

        def time(k: int, each: int = 0) -> float:
            """Return the time of a call with *each* workgroups for each core (0: with one workgroup)."""
            high = min(each, 2)  # of the workgroups of a core, two have the same columns
            m, n = (high * rows * cores, each // high * columns) if each else (rows, columns)
            return _nanoseconds(device, self, m, n, k, awake)

        if self.step == matrix_tiles.WIDE_STEP:
            alone = shared = (time(last, PAIR) - time(last)) * self.step / last
        elif last > first:
            steps = (last - first) / self.step
            alone = (time(last) - time(first)) / steps
            shared = (time(last, PER_CORE) - time(first, PER_CORE)) / steps / PER_CORE
        else:
            few, many = (results // (rows * columns) for results in RESULTS)
            start = time(last, few)
            shared = (time(last, many) - start) / (many - few)
            alone = time(last) - (start - few * shared)  # without the start of a dispatch
        if min(shared, max(alone, shared)) <= 0:
            raise NoCost(f"{self.choice}: the clock cannot distinguish k = {first} from k = {last}")
        return max(alone, shared), shared


class TimedRepack:
    """Times the repack of an image into the layout that matrix units read."""

    table, name = AS_GIVEN, "repack"

    def verify(self, device: Device) -> None:
        """Raise NoCost if the repacked image is wrong."""
        image = np.arange(-64, 64, dtype=np.int8).reshape(1, 32, 2, 2)
        if not np.array_equal(to_layout(Tensor.from_numpy(image, device), BLOCKED).numpy(), image):
            raise NoCost("the repack of an image is wrong")

    def cost(self, device: Device, awake: Awake) -> tuple[float, float]:
        """Return (nanoseconds for a small image, additional nanoseconds for each million bytes)."""
        small, large = (self._nanoseconds(device, side, awake) for side in SIDES)
        return small, max(large - small, 1.0) * 1e6 / (16 * (SIDES[1] ** 2 - SIDES[0] ** 2))

    def _nanoseconds(self, device: Device, side: int, awake: Awake) -> float:
        x, trial = Tensor(device, (1, 16, side, side), "int8"), Trial({}, ())
        trial.record(device, Chosen(partial(to_layout, layout=BLOCKED), {}), x)
        awake()
        trial.sample(TILE_S, LEAST_OF_TILE)
        return 1e3 * (trial.time_us or math.inf)


def int8_costs() -> list[TimedTile | TimedRepack]:
    """Return what to time for int8 products: first the two entries of the table `AS_GIVEN` (repack and dot
    product), then the tiles of matrix units. Small tiles come first, because they compile fastest."""
    dots = TimedTile(AS_GIVEN, "dot", {}, (DOT_TILE, DOT_TILE), "q8ta_q8csw_q8to", "int8", DEPTHS)
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
        yield TimedTile(INT8, name, choice, tiling.size, "q8ta_q8csw_q8to", "int8", depths, step)


def float_tiles(device: Device) -> Iterator[TimedTile]:
    """Yield the tiles of products with float activations that the device can run."""
    c = device.capabilities
    for of in (FLOAT16, STRAIGHT, WORDS, PARTS_OF_FLOAT32):
        scheme, dtype = ("q8csw", "float32") if of is PARTS_OF_FLOAT32 else ("q8csw_f16", "float16")
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
    awake = Awake(device)
    int8 = int8_costs() if lacking(device.capabilities) is None else ()
    for one in (*int8, *float_tiles(device)):
        told(f"{one.table}: {one.name}")
        with contextlib.suppress(NoCost):
            one.verify(device)
            found.setdefault(one.table, {})[one.name] = one.cost(device, awake)
    return in_seed_units(found)


def _nanoseconds(device: Device, tile: TimedTile, m: int, n: int, k: int, awake: Awake) -> float:
    """Return the nanoseconds of the last dispatch of a product with the sizes m, n, k that runs the tile.
    Raises NoCost if the product cannot run on the device, or runs another tile."""
    # Make the layer from data with one row: the layer does not depend on m, and making data with many rows
    # takes long.
    call, trial = Chosen(tile.subject(device, 1, n, k).layer, tile.choice), Trial(tile.choice, ())
    try:
        x = filled(device, (m, k), tile.dtype)
        _require(call.plan(x.spec), tile)
        trial.record(device, call, x, last=True)
    except DeviceLostError:
        raise
    except VkqError as error:
        raise NoCost(str(error)) from error
    awake()
    trial.sample(TILE_S, LEAST_OF_TILE)
    return 1e3 * (trial.time_us or math.inf)


def _require(plan: Plan, tile: TimedTile) -> None:
    """Raise NoCost if the plan does not run *tile*, for example because the device has too little memory for
    it. A *tile* without a choice (the dot product) is accepted with any tile."""
    ran = (step.program.variant.axes.get("tile") for step in plan.steps if step.program)
    if tile.choice and tile.name not in ran:
        raise NoCost(f"the plan does not run tile {tile.name}; it runs {', '.join(plan.variants)}")
