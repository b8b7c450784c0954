"""Measure the cost of each tile of matrix units on a device: the time of a step of k for a workgroup that
runs alone on a core, and for one that shares it. Both follow from timing calls with one and with two
workgroups per core, at two depths of k."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..device.costs import INT8, SEED, CostTable, in_seed_units
from ..device.profiles import preferred, profile
from ..errors import DeviceLostError, VkqError
from ..kernels import matrix_tiles, matrix_units
from ..kernels.half import kind_of
from ..kernels.half_configs import FLOAT16, PARTS_OF_FLOAT32, STRAIGHT, WORDS, OperandKind
from ..kernels.matrix_tiles import Tiling
from ..numerics.qparams import QParams
from ..ops.linear import Linear
from ..probe.matrices import lacking, lacking_half
from ..runtime.device import Device
from ..runtime.plan import Plan
from ..runtime.tensor import Tensor
from ..select.path import COOPMAT
from ..select.tuner import says

PER_CORE = 2  # workgroups for each core in the second kind of call
DEPTHS = (512, 2048)  # the two sizes of K that are timed
LEAST_S, LEAST = 0.005, 5  # a call is timed for at least LEAST_S seconds, and at least LEAST times
Layer = Callable[[int, int], Linear]  # (outputs, k) -> layer


class NoCost(VkqError):
    """A tile cannot run on this device, or its results are wrong."""


def int8_cost(device: Device, tile: str) -> tuple[float, float]:
    """Return the nanoseconds (alone, shared) of an int8 tile for the depth of K to which its table refers.
    Raises NoCost."""
    tiling = Tiling(tile)
    depths = _depths(tiling)
    per = matrix_tiles.WIDE_STEP if tiling.wide else matrix_tiles.STEP

    def layer(n: int, k: int) -> Linear:
        w, q = np.resize(_numbers(k), (n, k)), QParams(0.05)
        return Linear(w, 0.01, x_qparams=q, y_qparams=q, path=COOPMAT, device=device)

    pick = {matrix_units.KIND: str(tiling)}
    return _pair(device, layer, pick, tile, tiling.size, depths, per, np.int8)


def _depths(tiling: Tiling) -> tuple[int, ...]:
    """Return the sizes of K to time: the least that the tile allows, and four times that; for tiles without a
    loop over K, the largest allowed."""
    if tiling.short:
        return (matrix_tiles.SHORT_MOST,)
    return (
        (matrix_tiles.LONG_LEAST, 4 * matrix_tiles.LONG_LEAST) if tiling.tile == matrix_tiles.LONG else DEPTHS
    )


def half_costs(device: Device, of: OperandKind) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield (name, cost) of each tile for float products."""
    kind, compute = kind_of(of), "float16" if of is not PARTS_OF_FLOAT32 else "float32"
    dtype = np.float16 if compute == "float16" else np.float32

    def layer(n: int, k: int) -> Linear:
        return Linear(np.resize(_numbers(k), (n, k)), 0.01, compute=compute, device=device)

    for config in of.able(device.capabilities):
        size = int(config.variant.sizes["BM"]), int(config.variant.sizes["BN"])
        pick = {kind: f"{config.variant.name}, k in 1"}
        tile = config.variant.axes["tile"]
        try:
            yield tile, _pair(device, layer, pick, tile, size, DEPTHS, 32, dtype)
        except NoCost:
            continue


def measured_costs(device: Device, told: Callable[[str], None] = lambda _: None) -> CostTable:
    """Return the cost tables of all products that the device's matrix units can run, in the seed's unit
    (`in_seed_units`)."""
    c, found = device.capabilities, dict[str, dict[str, tuple[float, float]]]()
    if lacking(c) is None:
        for tile in SEED[INT8]:
            told(f"{INT8}: {tile}")
            try:
                check_tile(device, tile)
                found.setdefault(INT8, {})[tile] = int8_cost(device, tile)
            except NoCost:
                continue
    for of in (FLOAT16, STRAIGHT, WORDS, PARTS_OF_FLOAT32):
        if lacking_half(c, of.form) is None:
            told(of.cycles)
            found[of.cycles] = dict(half_costs(device, of))
    return in_seed_units({name: table for name, table in found.items() if table})


def _pair(
    device: Device,
    layer: Layer,
    pick: dict[str, str],
    tile: str,
    size: tuple[int, int],
    depths: tuple[int, ...],
    per: int,
    dtype: type,
) -> tuple[float, float]:
    """Return the times (alone, shared) of a step of *per* elements of K."""
    rows, columns = size
    cores = profile(device.capabilities).multiprocessors
    times = []
    for m, n, workgroups in ((rows, columns, 1), (rows * cores, PER_CORE * columns, PER_CORE)):
        at = [_nanoseconds(device, layer(n, k), pick, tile, (m, k), dtype) for k in depths]
        steps = (depths[-1] - depths[0]) / per if len(depths) > 1 else 1
        took = (at[-1] - at[0]) if len(depths) > 1 else at[0]
        if took <= 0:
            raise NoCost(f"{pick}: the clock cannot distinguish k = {depths[0]} from k = {depths[-1]}")
        times.append(took / steps / workgroups)
    return max(times), times[1]


def _nanoseconds(
    device: Device, subject: Linear, pick: dict[str, str], tile: str, shape: tuple[int, int], dtype: type
) -> float:
    """Return the shortest time of a call in nanoseconds. Raises NoCost if the call would use another tile."""
    x = Tensor.from_numpy(np.resize(_numbers(shape[1]), shape).astype(dtype), device)
    try:
        with preferred(says(pick)):
            plan = subject.plan(x.spec)
            _require(plan, tile)
            timed = sum(step.program is not None for step in plan.steps)
            timed = timed if device.capabilities.timestamp_valid_bits else 0
            with device.record(timestamps=timed) as recording:
                subject(x)
    except DeviceLostError:
        raise
    except VkqError as error:
        raise NoCost(str(error)) from error
    times, end = list[float](), time.perf_counter() + LEAST_S
    while len(times) < LEAST or time.perf_counter() < end:
        start = time.perf_counter()
        recording.run()
        host = (time.perf_counter() - start) * 1e9
        times.append(1e3 * recording.gpu_times_us()[-1] if timed else host)
    return min(times)


def check_tile(device: Device, tile: str) -> None:
    """Raise NoCost if the tile's product is wrong, or if the device has too little memory for the tile."""
    tiling = Tiling(tile)
    (m, n), k = tiling.size, _depths(tiling)[0]
    x, w = (np.resize(_numbers(prime), (size, k)) for prime, size in ((251, m), (241, n)))
    q = QParams(0.05)
    layer = Linear(w, 0.01, x_qparams=q, path=COOPMAT, device=device)
    given = Tensor.from_numpy(x, device)
    with preferred(says({matrix_units.KIND: str(tiling)})):
        _require(layer.plan(given.spec), tile)
        got = layer(given).numpy()
    want = (x.astype(np.float64) @ w.astype(np.float64).T).astype(np.float32) * np.float32(q.scale * 0.01)
    if not np.allclose(got, want, rtol=1e-6):
        raise NoCost(f"tile {tiling}: {int((got != want).sum())} of {got.size} results are wrong")


def _require(plan: Plan, tile: str) -> None:
    """Raise NoCost if the plan uses another tile because the device has too little memory for *tile*."""
    if all(step.program is None or step.program.variant.axes.get("tile") != tile for step in plan.steps):
        raise NoCost(f"tile {tile} does not run here: {', '.join(plan.variants)}")


def _numbers(period: int) -> Any:
    return (np.arange(max(period, 1)) * 37 % 251 - 125).astype(np.int8)
