"""Cost tables for tiles of matrix units; the choice of a tile compares these costs.

A table has two costs for each tile: for a workgroup that runs alone on a core, and for one that shares the
core. A cost is the time of a step of 32 elements along k, in cycles (or another unit that all tables share).
`SEED` is the default for any device: a step reads rows and columns and multiplies them, so its time is the
square root of the number of results in the tile, times a factor for each kind of kernel. Measured costs
replace the seed: from the device itself (`vkq tune`), or from a device of its kind
(``tuned/VENDOR-DEVICE.json``).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("tuned")
VARIABLE, FRESH = "VKQ_TUNE", "fresh"
# A workgroup that runs alone on a core waits for memory, so its step takes LONE times as long as the step of
# a workgroup that shares the core. Tiles of more than ROOM results are exempt, because no second workgroup
# fits on the core anyway.
LONE, ROOM = 1.4, 1 << 14


class CostTable(dict[str, Any]):
    """A read-only, hashable mapping, for use in cache keys."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


Tiles = Mapping[str, tuple[float, ...]]
Numbers = Mapping[str, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Costs:
    """The cost tables. ``*_part_cycles``, for split-K: the time until the last part is known, the time for
    each part, and the time to pass on a million sums."""

    # int8 products; suffix _short: cycles for the whole k; suffix _wide: cycles for a k of 512.
    matrix_tile_cycles: Tiles
    matrix_part_cycles: tuple[float, ...]
    matrix_sum_cycles: Numbers  # cycles for a thousand results that are added to another tensor
    matrix_end_cycles: Numbers  # cycles of an epilogue on a core that has only this workgroup
    # int8 convolutions in tiles of pixels. A step of 32 k takes `step` times the root of the tile's results.
    # Reading the pixels of a chunk takes as long as `chunk` steps, and `strided` times that if strides skip
    # pixels. Compared with kernels that gather pixels, a workgroup that runs alone on a core takes `lone`
    # times as long, and each result adds `end`.
    matrix_conv_costs: Numbers
    # int8 convolutions that gather pixels. `part_cycles`: the cycles of a workgroup outside its products, and
    # how many workgroups start together on a core. `once`: the time that this kernel takes longer than tiles
    # of pixels.
    matrix_gathered_cycles: Tiles
    matrix_gathered_part_cycles: tuple[float, ...]
    matrix_gathered_once: float
    integer_tile_cycles: Tiles  # exact integer correlations
    # `tiles`: multiply-adds per cycle of a core's dot products; `multiply`: how many of these one 32-bit
    # multiply costs; `chunk`: cycles for each KiB of pixels loaded into shared memory; `part`: cycles for
    # each int32 that split-K writes and reads again
    integer_costs: Numbers
    half_tile_cycles: Tiles  # products of float16 with int8 weights
    # B is loaded directly from global memory; a tile without an entry is not used.
    straight_tile_cycles: Tiles
    # Fragments are assembled in registers; the last number is how many workgroups fit on a core.
    words_tile_cycles: Tiles
    parts_tile_cycles: Tiles  # float32 products as bf16x3
    half_part_cycles: tuple[float, ...]
    half_gathered_cycles: Tiles  # convolutions that gather pixels; last: cycles outside the products
    parts_gathered_cycles: Tiles
    # Cycles of the dispatch that prepares x for gathering: `once`, and for each element of x.
    gathered_before_cycles: Numbers
    half_plane_cycles: Tiles  # 1x1 convolutions on unpacked float16 images
    float32_plane_cycles: Tiles
    parts_plane_cycles: Tiles
    half_pixel_cycles: Tiles  # convolutions in tiles of pixels (rows x columns x outputs)
    half_pixel_costs: Numbers  # reading 128 pixels of a chunk takes as long as this many steps of 32 k


def _tiles(names: str, step: float, end: float = 0.0, *more: float) -> CostTable:
    """Return the seed entries of tiles: *step* times the square root of the results for 32 elements along k,
    *end* for each result, followed by the entries *more*."""
    found = CostTable()
    for name in names.split():
        results = math.prod(int(size) for size in name.partition("_")[0].split("x"))
        cycles = step * math.sqrt(results)
        lone = LONE if results <= ROOM else 1.0
        found[name] = (round(lone * cycles), round(cycles), *((round(end * results),) if end else ()), *more)
    return found


_INT8 = "128x256 128x256_long 128x128 128x64 64x64 64x64_deep 64x32"
_SHORT = "128x128_short 128x64_short 64x64_short 64x32_short"
_GATHERED = "128x128 128x64 64x64 32x64 32x32 16x64"
_PLANES = "64x64 32x64 16x64"
# The factors *step* and *end* of `_tiles` are fitted to tables that were measured on one H200. All kinds of
# kernels have factors of the same device, so their costs can be compared. The costs of split-K are its, too.
SEED: Mapping[str, Any] = {
    "matrix_tile_cycles": CostTable(
        **_tiles(_INT8, 4.4), **_tiles(_SHORT, 12.0), **_tiles("32x32_wide", 16 * 5.3)
    ),
    "matrix_part_cycles": (3900, 970, 3600),
    "matrix_sum_cycles": CostTable(dict.fromkeys((_INT8 + " " + _SHORT + " 32x32_wide").split(), 150)),
    "matrix_end_cycles": CostTable({"128x256": 5000, "128x256_long": 5000}),
    "matrix_conv_costs": CostTable(step=4.6, chunk=6, strided=1.3, lone=0.58, end=0.4),
    "matrix_gathered_cycles": _tiles("128x128 128x64 64x64 64x64_deep", 3.0, 0.25, 1),
    "matrix_gathered_part_cycles": (213, 928, 2723),
    "matrix_gathered_once": 2900,
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
INT8 = "matrix_tile_cycles"
DIRECT = ("straight_tile_cycles", "words_tile_cycles")  # load fragments from global memory


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Costs measured on a kind of device: ``devices`` are VENDOR-DEVICE ids in hexadecimal, ``driver`` the
    driver of the measurement, ``cores`` the device's number of cores, ``costs`` tables of `Costs`."""

    devices: tuple[str, ...]
    driver: str
    cores: int
    costs: Mapping[str, Any]

    @classmethod
    def parse(cls, value: Any) -> Tuned:
        """Return the value of a JSON text. Raises ValueError if its form is wrong."""
        if not isinstance(value, dict) or value.keys() != {"devices", "driver", "cores", "costs"}:
            raise ValueError("its keys are not devices, driver, cores, costs")
        devices, cores = value["devices"], value["cores"]
        if not (isinstance(devices, list) and type(cores) is int and cores > 0):
            raise ValueError("devices are a list, and cores at least 1")
        return cls(tuple(map(str, devices)), str(value["driver"]), cores, parse_costs(value["costs"]))


def parse_costs(value: Any) -> CostTable:
    """Return tables of `Costs` from the value of a JSON text, each in the form of `SEED`. Raises ValueError
    for another form, and for values that are negative or not numbers."""
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
    """Return tables of `Costs` from measured times, scaled so that their median ratio to the seed is 1,
    because unmeasured costs keep the seed's values. A tile's entries after its two costs also keep the seed's
    values."""
    seeds = {name: {tile: SEED[name][tile] for tile in table} for name, table in found.items()}
    ratios = [seeds[name][tile][1] / pair[1] for name, table in found.items() for tile, pair in table.items()]
    unit = statistics.median(ratios) if ratios else 1.0
    scaled = {
        name: {
            tile: (*(round(unit * time, 1) for time in pair), *seeds[name][tile][2:])
            for tile, pair in table.items()
        }
        for name, table in found.items()
    }
    return CostTable({name: CostTable({**SEED[name], **table}) for name, table in scaled.items()})


@functools.cache
def shipped() -> Mapping[str, Tuned]:
    """Return the cost files that come with vkq, by VENDOR-DEVICE; empty if VKQ_TUNE is "fresh". A file
    applies to every device that it lists."""
    if os.environ.get(VARIABLE) == FRESH:
        return {}
    files = (Tuned.parse(json.loads(path.read_text())) for path in sorted(FOLDER.glob("*.json")))
    return {device: one for one in files for device in one.devices}
