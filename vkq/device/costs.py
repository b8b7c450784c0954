"""The tables from which vkq estimates the time of a product with each tile of the matrix units, to choose
the fastest tile.

A table has two costs for each tile: for a workgroup that runs alone on a core, and for a workgroup that
shares the core. A cost is the time of a step of 32 elements along K, in cycles (or another unit, the same
for all tables).

`SEED` has the default costs for any device: the square root of the number of results of the tile, times a
factor for the type of kernel. Measured costs replace the seed. They are measured at the first use of a
device (`vkq.device.first_sight`), or come from a file for a device model (``tuned/VENDOR-DEVICE.json``,
which `vkq tune --export` writes).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

FOLDER = Path(__file__).with_name("tuned")
VARIABLE, FRESH = "VKQ_TUNE", "fresh"
# A workgroup that runs alone on a core waits for memory: its step takes LONE times as long as that of a
# workgroup that shares the core. A tile with more than ROOM results leaves no room for a second workgroup,
# so its two costs are equal.
LONE, ROOM = 1.4, 1 << 14
SUM_CYCLES = 150  # the default entry of `Costs.matrix_sum_cycles`
# The tile DOT_TILE x DOT_TILE to which the costs of dot products in `Costs.as_given_cycles` apply.
DOT_TILE = 64


class CostTable(dict[str, Any]):
    """A read-only mapping that is hashable, for use in cache keys."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class SeededCosts(CostTable):
    """The costs of the tiles of int8 products. The cost of a tile without an entry is its seed."""

    def __contains__(self, tile: object) -> bool:
        return True

    def __missing__(self, tile: str) -> tuple[float, ...]:
        kind = tile.partition("_")[2]
        return cast(tuple[float, ...], _tiles(tile, {"short": 12.0, "wide": 16 * 5.3}.get(kind, 4.4))[tile])


Tiles = Mapping[str, tuple[float, ...]]
Numbers = Mapping[str, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Costs:
    """The cost tables. A table ``*_part_cycles`` has three costs of split-K: cycles for the whole product,
    cycles for each part of K, and cycles for each million partial sums."""

    # int8 products. Entries with the suffix _short are the cycles for all of K, those with _wide the cycles
    # for 512 elements along K. A tile that a file in ``tuned`` does not list is not used on that file's
    # devices.
    matrix_tile_cycles: Tiles
    matrix_part_cycles: tuple[float, ...]
    # Cycles for adding a residual to a thousand results; SUM_CYCLES for a tile without an entry.
    matrix_sum_cycles: Numbers
    # Cycles of an epilogue in which no other workgroup of the core computes.
    matrix_end_cycles: Numbers
    # int8 convolutions in tiles of pixels:
    # - step: cycles of a step of 32 elements along K, divided by the square root of the tile's results
    # - chunk: time to read the pixels of a chunk of channels, in steps
    # - strided: factor for steps and reading with a stride above 1
    # - lone, end: only for the comparison with kernels that gather pixels. lone: factor for workgroups that
    #   run alone on their cores. end: cycles for each result.
    matrix_conv_costs: Numbers
    # int8 convolutions that gather pixels. A tile has four numbers: its two costs, the cycles of a
    # workgroup outside the products, and the number of workgroups that start together on a core.
    matrix_gathered_cycles: Tiles
    matrix_gathered_part_cycles: tuple[float, ...]
    # Cycles that are added for the comparison with convolutions in tiles of pixels.
    matrix_gathered_once: float
    # int8 products of an x that is not in the layout of matrix units:
    # - dot: the two costs of a step of dot products on x as it is, for a tile of DOT_TILE x DOT_TILE results
    # - repack: the cycles of the dispatch that repacks a small x, and those for each further million bytes
    as_given_cycles: Tiles
    integer_tile_cycles: Tiles  # exact integer convolutions
    # Exact integer convolutions:
    # - tiles: multiply-adds per cycle of a core's dot products
    # - multiply: time of a 32-bit multiplication, in multiply-adds of dot products
    # - chunk: cycles for each KiB of pixels loaded into shared memory
    # - part: cycles for each int32 that split-K writes and reads again
    integer_costs: Numbers
    half_tile_cycles: Tiles  # products of float16 x and int8 weights
    # Products that load B directly from global memory. Tiles without an entry are not used.
    straight_tile_cycles: Tiles
    # Products that assemble fragments in registers. The last number of a tile: the workgroups that fit on a
    # core.
    words_tile_cycles: Tiles
    parts_tile_cycles: Tiles  # float32 products as bf16x3
    half_part_cycles: tuple[float, ...]
    # Float convolutions that gather pixels. The third number of a tile: the cycles of an epilogue.
    half_gathered_cycles: Tiles
    parts_gathered_cycles: Tiles
    # The dispatch that prepares x for gathering. `once`: its fixed cycles. `f16`, `bf16`: cycles for each
    # element packed to this dtype.
    gathered_before_cycles: Numbers
    # 1x1 convolutions on images that are not packed: float16 arithmetic on float16 images, float16
    # arithmetic on float32 images, and bf16x3 on float32 images.
    half_plane_cycles: Tiles
    float32_plane_cycles: Tiles
    parts_plane_cycles: Tiles
    # Float convolutions in tiles of pixels. A tile's name is rows x columns x outputs.
    half_pixel_cycles: Tiles
    # Time to read 128 pixels of a chunk of channels, in steps. `float32`, `float16`: the dtype of x.
    # `straight`: tiles with this suffix.
    half_pixel_costs: Numbers


def _tiles(names: str, step: float, end: float = 0.0, *more: float) -> CostTable:
    """Return a table with the seeds of tiles. *names*: the names of the tiles, separated by spaces.

    A tile's cost for a workgroup that shares the core is *step* times the square root of the tile's number
    of results. The cost for a workgroup that runs alone is `LONE` times as much; for a tile of more than
    `ROOM` results, it is the same. If *end* is not 0, the third number of a tile is *end* times its number
    of results. *more*: further numbers of every tile."""
    found = CostTable()
    for name in names.split():
        results = math.prod(int(size) for size in name.partition("_")[0].split("x"))
        cycles = step * math.sqrt(results)
        lone = LONE if results <= ROOM else 1.0
        found[name] = (round(lone * cycles), round(cycles), *((round(end * results),) if end else ()), *more)
    return found


_GATHERED = "128x128 128x64 64x64 32x64 32x32 16x64"
_PLANES = "64x64 32x64 16x64"
# The arguments *step* and *end* of `_tiles` and the costs of split-K are fitted to measurements on one
# NVIDIA H200, so the costs of different kernels are comparable.
SEED: Mapping[str, Any] = {
    "matrix_tile_cycles": SeededCosts(_tiles("64x64", 4.4)),
    "matrix_part_cycles": (3900, 970, 3600),
    "matrix_sum_cycles": CostTable(),
    "matrix_end_cycles": CostTable({"128x256": 5000, "128x256_long": 5000}),
    "matrix_conv_costs": CostTable(step=4.6, chunk=6, strided=1.3, lone=0.58, end=0.4),
    "matrix_gathered_cycles": _tiles("128x128 128x64 64x64 64x64_deep", 3.0, 0.25, 1),
    "matrix_gathered_part_cycles": (213, 928, 2723),
    "matrix_gathered_once": 2900,
    # Infinite: without a measurement, dot products never replace matrix units.
    "as_given_cycles": CostTable(dot=(math.inf, math.inf), repack=(0, 0)),
    "integer_tile_cycles": _tiles("16x8x128 16x8x64 16x8x32 16x16x64 16x16x32", 2.5),
    "integer_costs": CostTable(tiles=62, multiply=2.1, chunk=54, part=0.125),
    "half_tile_cycles": _tiles("128x256 128x128 128x64 64x128 64x64 32x64 32x32 16x64", 6.2),
    "straight_tile_cycles": _tiles("64x256 64x128 64x64 32x64 16x64", 4.7),
    "words_tile_cycles": CostTable(
        **_tiles("64x256", 5.5, 0, 2), **_tiles("64x256_eight", 5.5, 0, 1), **_tiles("64x128", 4.1, 0, 2)
    ),
    "parts_tile_cycles": _tiles("128x128 64x128 64x64 32x64 16x64", 11.0),
    "half_part_cycles": (4500, 1200, 5300),
    "half_gathered_cycles": _tiles("128x256 " + _GATHERED + " 64x128", 5.8, 0.8),
    "parts_gathered_cycles": _tiles("128x128 64x128 64x64 32x64 16x64", 12.0, 1.0),
    "gathered_before_cycles": CostTable(once=6400, f16=0.0036, bf16=0.006),
    "half_plane_cycles": _tiles(_PLANES, 7.0, 0.9),
    "float32_plane_cycles": _tiles(_PLANES, 9.0, 1.2),
    "parts_plane_cycles": _tiles(_PLANES, 16.0, 1.5),
    "half_pixel_cycles": CostTable(
        **_tiles("8x16x128 4x8x64 4x8x32", 6.0, 0.5),
        **_tiles("4x32x128_straight 4x24x128_straight 8x8x64_straight", 3.5, 0.2),
    ),
    "half_pixel_costs": CostTable(float32=15, float16=10, straight=4),
}
INT8, AS_GIVEN = "matrix_tile_cycles", "as_given_cycles"
# The tables of kernels that load fragments directly from global memory.
DIRECT = ("straight_tile_cycles", "words_tile_cycles")


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Costs measured on one device, for all devices of the same model."""

    devices: tuple[str, ...]  # their ids VENDOR-DEVICE in hexadecimal
    driver: str  # the driver of the measured device
    cores: int  # the cores of the measured device
    costs: Mapping[str, Any]  # tables of `Costs`

    @classmethod
    def parse(cls, value: Any) -> Tuned:
        """Return the costs from a parsed JSON value. Raises ValueError for wrong keys or types."""
        if not isinstance(value, dict) or value.keys() != {"devices", "driver", "cores", "costs"}:
            raise ValueError("its keys are not devices, driver, cores, costs")
        devices, cores = value["devices"], value["cores"]
        if not (isinstance(devices, list) and type(cores) is int and cores > 0):
            raise ValueError("devices are a list, and cores at least 1")
        return cls(tuple(map(str, devices)), str(value["driver"]), cores, parse_costs(value["costs"]))


def parse_costs(value: Any) -> CostTable:
    """Return tables of `Costs` from a parsed JSON value. Raises ValueError if a table differs in structure
    from the same table in `SEED`, or if a value is not a finite number of at least 0."""
    if not isinstance(value, dict) or not value.keys() <= SEED.keys():
        raise ValueError("it is not a mapping of cost tables")
    return CostTable({name: _like(SEED[name], table, name) for name, table in value.items()})


def _like(seed: Any, given: Any, where: str) -> Any:
    if isinstance(seed, dict):
        if not isinstance(given, dict):
            raise ValueError(f"{where} is not a mapping")
        known = next(iter(seed.values()), 0)
        return CostTable(
            {key: _like(seed.get(key, known), one, f"{where}: {key}") for key, one in given.items()}
        )
    if isinstance(seed, tuple):
        if not isinstance(given, list) or len(given) != len(seed):
            raise ValueError(f"{where} must have {len(seed)} numbers")
        return tuple(_like(0, one, where) for one in given)
    if type(given) not in (int, float) or not (math.isfinite(given) and given >= 0):
        raise ValueError(f"{where} is {given!r}; it must be a number of at least 0")
    return given


def in_seed_units(found: Mapping[str, Mapping[str, tuple[float, float]]]) -> CostTable:
    """Return tables of `Costs` from measured times. *found*: {table: {tile: its two times}}.

    Tiles that were not measured keep their seeds. To make the measured tiles comparable with them, all
    times are multiplied by the median of (seed / time). `AS_GIVEN` is scaled, too, but is not part of the
    median. The numbers of a tile after its two costs keep their seeds."""
    seeds = {name: {tile: SEED[name][tile] for tile in table} for name, table in found.items()}
    ratios = [
        seeds[name][tile][1] / pair[1]
        for name, table in found.items() if name != AS_GIVEN
        for tile, pair in table.items()
    ]  # fmt: skip
    unit = statistics.median(ratios) if ratios else 1.0
    scaled = {
        name: {
            tile: (*(round(unit * time, 1) for time in pair), *seeds[name][tile][2:])
            for tile, pair in table.items()
        }
        for name, table in found.items()
    }
    return CostTable({name: type(SEED[name])({**SEED[name], **table}) for name, table in scaled.items()})


def table_of(name: str) -> str | None:
    """Return the name of the table with the entry *name*: `AS_GIVEN` for its entries, `INT8` for the name
    of a tile of int8 products, None for other names."""
    if name in SEED[AS_GIVEN]:
        return AS_GIVEN
    return INT8 if re.fullmatch(r"[1-9][0-9]*x[1-9][0-9]*(_[a-z]+)?", name) else None


@functools.cache
def shipped() -> Mapping[str, Tuned]:
    """Return {VENDOR-DEVICE id: costs} from the files that come with vkq; empty if VKQ_TUNE is "fresh"."""
    if os.environ.get(VARIABLE) == FRESH:
        return {}
    files = (Tuned.parse(json.loads(path.read_text())) for path in sorted(FOLDER.glob("*.json")))
    return {device: one for one in files for device in one.devices}
