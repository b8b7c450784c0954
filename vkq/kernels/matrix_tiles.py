"""Choose the tile of a product on matrix units and the number of parts of k (split-K), from the cycles in a
device's profile."""

from __future__ import annotations

import dataclasses
import functools
import math

from ..device.costs import DOT_TILE, SUM_CYCLES
from ..device.profiles import Profile
from ..shader.catalog import catalog
from .split import MOST_TILES

GEMM, WIDE_GEMM = "gemm_q8ta_q8csw__coopmat", "gemm_q8ta_q8csw__wide_coopmat"  # the shaders that have tiles
DEEP = "64x64_deep"  # a tile that prefetches more steps, for products with a long k
# LONG: a tile whose last iterations are unrolled. LONG_LEAST: the minimum k for which it is the fastest
# tile.
LONG, LONG_LEAST = "128x256_long", 2048
SHORT = "_short"  # suffix of tiles without a loop over k, for a k of at most two steps
SHORT_MOST = 64  # the maximum k of SHORT tiles
WIDE = "_wide"  # suffix of slice-K tiles, for few outputs: the subgroups divide the k of a step
STEP = 32  # elements along k for which a profile states the cycles of a tile
WIDE_STEP = 512  # elements along k for which a profile states the cycles of a wide tile
# Elements along k of one loop iteration of all tiles but DEEP. Weights are padded to a multiple of TURN.
TURN = 128
# For DEEP. DEEP_TURN: elements along k of one loop iteration; DEEP_LEAST: the minimum k for this tile.
DEEP_TURN, DEEP_LEAST = 256, 512
K_SPLITS = (2, 3, 4, 6, 8, 12, 16)
SPLIT_TILES = ("128x128", "128x64", "64x64", DEEP)


@dataclasses.dataclass(frozen=True)
class Tiling:
    """A tile, and the maximum number of parts of k. A workgroup computes one part."""

    tile: str
    parts: int = 1

    def __str__(self) -> str:
        return f"{self.tile}, k in {self.parts}" if self.parts > 1 else self.tile

    @property
    def size(self) -> tuple[int, int]:
        """The tile's size as (rows, outputs)."""
        rows, outputs = map(int, self.tile.partition("_")[0].split("x"))
        return rows, outputs

    @property
    def short(self) -> bool:
        """True if the tile has no loop over k."""
        return self.tile.endswith(SHORT)

    @property
    def wide(self) -> bool:
        """True if the tile's subgroups divide the k of a step (slice-K)."""
        return self.tile.endswith(WIDE)

    @property
    def turn(self) -> int:
        """The number of elements along k of one iteration of the tile's loop."""
        return DEEP_TURN if self.tile == DEEP else TURN

    def tiles(self, rows: int, n: int, groups: int = 1) -> int:
        """Return the number of tiles of a product with *rows* rows and *n* outputs in each group."""
        tile_rows, outputs = self.size
        return groups * -(-rows // tile_rows) * -(-n // outputs)

    def part(self, k: int) -> int:
        """Return the number of elements along k of one part, a multiple of `turn`."""
        return -(-k // (self.turn * self.parts)) * self.turn

    def used_parts(self, k: int) -> int:
        """Return the number of parts of this k. It may be less than `parts`, because `part` rounds up."""
        return -(-k // self.part(k))

    def cycles(
        self,
        known: Profile,
        rows: int,
        n: int,
        k: int,
        groups: int = 1,
        summed: bool = False,
        gathered: bool = False,
    ) -> float:
        """Return the estimated cycles of a product. *summed*: the epilogue adds a residual. *gathered*: the
        rows are pixels of a convolution, and the kernel gathers pixels for one tap at a time."""
        tiles = self.tiles(rows, n, groups)
        parts = self.used_parts(k)
        share: float = tiles * parts / known.multiprocessors
        if gathered:
            alone, together, end, at_once = known.matrix_gathered_cycles[self.tile]
            share, part_cycles = math.ceil(share), known.matrix_gathered_part_cycles
            ends: float = end * share
            if share > 1:
                share += -share % at_once
        else:
            alone, together = known.matrix_tile_cycles[self.tile]
            part_cycles = known.matrix_part_cycles
            if alone == together:  # a multiprocessor has room for only one workgroup
                share = math.ceil(share)
            ends = known.matrix_end_cycles.get(self.tile, 0) * share
        steps = 1 if self.short else -(-k // WIDE_STEP) if self.wide else self.part(k) / STEP
        loop = steps * max(alone, together * share) + ends
        tile_rows, outputs = self.size
        if summed:
            thousand = known.matrix_sum_cycles.get(self.tile, SUM_CYCLES)
            loop += thousand * tile_rows * outputs / 1e3 * max(1, share / parts)
        if parts > 1:
            once, each, sums = part_cycles
            loop += once + parts * (each + sums * tiles * tile_rows * outputs / 1e6)
        return loop


def tile_names() -> tuple[str, ...]:
    """Return the names of all tiles, the values of the shaders' axis `tile`."""
    return tuple(tile for shader in (GEMM, WIDE_GEMM) for tile in catalog().shaders[shader].axes["tile"])


@functools.lru_cache(maxsize=1024)  # cached: many layers have the same sizes
def tilings(
    known: Profile,
    rows: int,
    n: int,
    k: int,
    groups: int = 1,
    gathered: bool = False,
    split: bool = True,
    wide: bool = True,
    summed: bool = False,
) -> tuple[Tiling, ...]:
    """Return the tilings that support a product with *rows* rows, *n* outputs in each group and this k:
    those without a loop over k, then all others, each sorted by estimated time. The fastest tiling of each
    tile comes before the second of any, because `vkq tune` tries only the first few.

    - *split*: include tilings with several parts.
    - *wide*: include slice-K tilings.
    - *summed*, *gathered*: see `Tiling.cycles`."""
    short, k = k <= SHORT_MOST and groups == 1, k + -k % TURN
    names = SPLIT_TILES if gathered else [one for one in tile_names() if one in known.matrix_tile_cycles]
    found = [Tiling(tile) for tile in names]
    found = [one for one in found if (short or not one.short) and (wide or not one.wide)]
    if split:
        found += [Tiling(tile, parts) for tile in SPLIT_TILES for parts in K_SPLITS]
    able = (
        one
        for one in found
        if (one.tile != DEEP or (k % DEEP_TURN == 0 and k >= DEEP_LEAST))
        and (one.tile != LONG or k >= LONG_LEAST)
        and (one.parts == 1 or (one.parts == one.used_parts(k) and one.tiles(rows, n, groups) <= MOST_TILES))
    )
    found = sorted(
        able, key=lambda one: (not one.short, one.cycles(known, rows, n, k, groups, summed, gathered))
    )
    fastest = {one.tile: one for one in reversed(found)}
    return tuple(sorted(found, key=lambda one: one is not fastest[one.tile]))


def is_faster_as_given(known: Profile, rows: int, n: int, k: int) -> bool:
    """Return True if dot products on x as it is are faster than a repack of x and matrix units. For a
    product outside of a network: in a network, x already has the layout of matrix units."""
    alone, together = known.as_given_cycles["dot"]
    once, each_million = known.as_given_cycles["repack"]
    share = -(-rows // DOT_TILE) * -(-n // DOT_TILE) / known.multiprocessors
    dots = k / STEP * max(alone, together * share)
    padded = k + -k % TURN
    # Leave out tiles without a loop: their cost includes the start of a dispatch; that of dot products
    # (*dots*) does not.
    units = min(one.cycles(known, rows, n, padded) for one in tilings(known, rows, n, k) if not one.short)
    return bool(dots < once + each_million * rows * k / 1e6 + units)
