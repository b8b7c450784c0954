"""Tiles for 8-bit attention in one dispatch, as specialization constants: the rows of scores of a
workgroup, and the keys in shared memory at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ..probe.matrices import Matrices
from ..shader.spec import Value as Constant
from .attention import AttentionSizes
from .weights import ceil4

Tile = dict[str, Constant]
INVOCATIONS = 128
# Limits of dot products, in 4x4 blocks:
# - STAGED: blocks of keys or values in shared memory
# - MOST_BLOCKS: blocks along the axis of keys
STAGED, MOST_BLOCKS = 512, 32
# The cost model of matrix units:
# - START: cost of starting a workgroup, in units of the cost of a row
# - RESIDENT: workgroups that run on a core at the same time
START, RESIDENT = 5.5, 6


def dot_tiles(sizes: AttentionSizes) -> Iterator[Tile]:
    """Yield tiles for packed dot products (attention_q8.comp), the one with most rows first."""
    depth, wide = ceil4(sizes.depth), ceil4(sizes.width)
    keys4, tile = 1 << (ceil4(sizes.keys) - 1).bit_length(), MOST_BLOCKS
    while tile > 1 and tile * max(depth, wide) > STAGED:
        tile //= 2
    for rows4 in (one for one in (8, 4, 2, 1) if one * wide <= INVOCATIONS):
        yield {
            "ROWS4": rows4, "KEYS4": keys4, "TILE": min(tile, keys4),
            "DEPTH4": depth, "WIDTH4": wide, "LOCAL_X": INVOCATIONS,
        }  # fmt: skip


def matrix_tiles(sizes: AttentionSizes, matrices: Matrices) -> Iterator[Tile]:
    """Yield tiles for matrix units (attention_q8_coopmat.comp)."""
    least = INVOCATIONS // matrices.subgroup * matrices.m
    for rows, tile in itertools.product((32, 16), (least, 2 * least)):
        tiles = 1 << (-(-sizes.keys // tile) - 1).bit_length()
        yield {
            "ROWS": rows, "KEYS16": tiles * tile // 16, "TILE": tile, "LOCAL_X": INVOCATIONS,
            "DEPTH16": sizes.depth // 16, "WIDTH16": sizes.width // 16, **matrices.shape_constants,
        }  # fmt: skip


def best(tiles: Sequence[Tile], sizes: AttentionSizes, cores: int) -> Tile:
    """Return the tile to run on a device with *cores* cores.

    With dot products, return the largest tile with at least two workgroups for each core, else the smallest
    tile.

    On matrix units, return the tile with the lowest estimated cost. Of tiles with equal cost, prefer fewer
    keys in shared memory at once. With at most two workgroups for each core, prefer more keys, which need
    fewer barriers.
    """

    def workgroups(tile: Tile) -> int:
        rows = int(tile["ROWS"] if "ROWS" in tile else 4 * int(tile["ROWS4"]))
        return sizes.batch * sizes.heads * -(-sizes.queries // rows)

    def cost(tile: Tile) -> tuple[float, int]:
        few = workgroups(tile) <= 2 * cores
        turns = max(1.0, workgroups(tile) / (RESIDENT * cores))
        return (START + int(tile["ROWS"])) * turns, int(tile["TILE"]) * (1 - 2 * few)

    if "ROWS" in tiles[0]:
        return min(tiles, key=cost)
    return next((tile for tile in tiles if workgroups(tile) >= 2 * cores), tiles[-1])
