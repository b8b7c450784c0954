"""The compile-time properties of an attention kernel, and the layout of its shared memory."""

from __future__ import annotations

import dataclasses

from ..numerics.attention import LANES, Tile
from ..numerics.steps import Number

PART = 16  # minimum number of elements of each query and key in shared memory at once
FEW_ROWS = 8  # maximum number of rows of a tile that leaves registers for prefetched values
PAD = 1  # floats of padding after each row of shared memory, against bank conflicts of the transposed stores
UNROLLED = 4
STRIDES = ("batch", "head", "row")
WORDS = (
    "first_group", "matrices", "groups", "lines", "queries", "keys", "scale", "start", "window",
    *(f"{x}_{stride}" for x in "qkvyb" for stride in STRIDES), "k_column", "b_column",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class AttentionForm:
    """The compile-time properties of a kernel."""

    depth: int
    width: int
    tile: Tile
    types: tuple[str, str, str]  # dtypes of q, k and v
    causal: bool
    biased: bool  # add a bias to the scores
    guarded: bool  # a query with NaN weights gets the result 0
    soft: bool
    span: int  # keys that a workgroup reads; 0: all
    apart: bool  # store partial results, which a second kernel combines
    placed: bool  # read the positions of the queries from a buffer

    @property
    def part(self) -> int:
        """The number of elements of each query and key in shared memory at once."""
        few = self.tile.rows <= FEW_ROWS and self.tile.keys <= 64
        return 2 * PART if few and self.depth % (2 * PART) == 0 else PART

    @property
    def part_bits(self) -> int:
        """log2 of `part`."""
        return self.part.bit_length() - 1

    @property
    def down(self) -> int:
        """The row stride: an invocation computes every down-th row. The stride is larger for few columns,
        because fewer invocations can then share a row."""
        columns = 1 << (self.width - 1).bit_length()
        return min(self.tile.rows, max(self.tile.rows // 4, LANES // columns, 1))


@dataclasses.dataclass(frozen=True)
class Places:
    """The layout of shared memory, as offsets in floats. A part of the queries (some elements of each
    query) is at offset 0. Parts are transposed: element 0 of all queries, PAD floats, element 1 of all
    queries, and so on."""

    k: int  # a part of the keys
    weights: int  # the weights
    rows: int  # an array with one value for each row
    lanes: int  # an array with one value for each invocation
    end: int  # the total size

    @classmethod
    def of(cls, tile: Tile, part: int) -> Places:
        k = (tile.rows + PAD) * part
        weights = k + (tile.keys + PAD) * part
        rows = weights + tile.rows * tile.keys
        return cls(k, weights, rows, rows + tile.rows, rows + tile.rows + LANES)


class Split:
    """The distribution of a matrix (rows, columns) over invocations. An invocation computes every *down*-th
    row, and in each of these rows every *across*-th group of *run* neighbouring columns. Each use computes
    the positions again, because stored positions would occupy registers that the sums need."""

    def __init__(self, lane: Number, down: int, rows: int, columns: int, run: int = 1):
        self.across, self.run = LANES // down, run
        self.below, self.beside = range(0, rows, down), range(0, -(-columns // run), self.across)
        self.count, self._lane = len(self.below) * len(self.beside) * run, lane

    @property
    def row(self) -> Number:
        return self._lane >> (self.across.bit_length() - 1)

    @property
    def column(self) -> Number:
        return self._lane & (self.across - 1)

    @property
    def rows(self) -> list[Number]:
        return [self.row + n for n in self.below]

    @property
    def columns(self) -> list[Number]:
        return [(self.column + n) * self.run + j for n in self.beside for j in range(self.run)]
