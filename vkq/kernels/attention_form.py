"""The properties for which an attention kernel is compiled, and the layout of its shared memory."""

from __future__ import annotations

import dataclasses

from ..numerics.attention import LANES, Tile
from ..numerics.steps import Number

PART = 16  # least number of elements of each query and key that shared memory holds at a time
FEW_ROWS = 8  # in tiles of up to this many rows, registers are free for loads ahead
PAD = 1  # floats between the elements of a part, which would otherwise all be stored to one memory bank
UNROLLED = 4
STRIDES = ("batch", "head", "row")
WORDS = (
    "first_group", "matrices", "groups", "lines", "queries", "keys", "scale", "start", "window",
    *(f"{x}_{stride}" for x in "qkvyb" for stride in STRIDES), "k_column", "b_column",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class AttentionForm:
    """The properties for which a kernel is compiled. span: the number of keys that a workgroup reads (0:
    all). apart: the kernel stores sums, largest scores and sums of weights for another kernel, which joins
    them. placed: the kernel reads the positions of the queries from a buffer."""

    depth: int
    width: int
    tile: Tile
    types: tuple[str, str, str]  # dtypes of q, k and v
    causal: bool
    biased: bool
    guarded: bool
    soft: bool
    span: int
    apart: bool
    placed: bool

    @property
    def part(self) -> int:
        """The number of elements of each query and key that shared memory holds at a time."""
        few = self.tile.rows <= FEW_ROWS and self.tile.keys <= 64
        return 2 * PART if few and self.depth % (2 * PART) == 0 else PART

    @property
    def part_bits(self) -> int:
        """log2 of `part`."""
        return self.part.bit_length() - 1

    @property
    def down(self) -> int:
        """The distance of the rows that an invocation computes. With few columns, it is larger."""
        columns = 1 << (self.width - 1).bit_length()
        return min(self.tile.rows, max(self.tile.rows // 4, LANES // columns, 1))


@dataclasses.dataclass(frozen=True)
class Places:
    """The layout of shared memory. Parts of the queries begin at offset 0. Parts are stored transposed: an
    element of all queries (keys), then PAD. Each field is the offset of an array of floats: k: parts of the
    keys; weights: the weights; rows: one value for each row; lanes: one value for each invocation. end: the
    number of floats in all."""

    k: int
    weights: int
    rows: int
    lanes: int
    end: int

    @classmethod
    def of(cls, tile: Tile, part: int) -> Places:
        k = (tile.rows + PAD) * part
        weights = k + (tile.keys + PAD) * part
        rows = weights + tile.rows * tile.keys
        return cls(k, weights, rows, rows + tile.rows, rows + tile.rows + LANES)


class Split:
    """The distribution of a matrix (rows, columns) over invocations. Each invocation computes every
    *down*-th row, and in it every *across*-th group of *run* neighbouring columns. Positions are computed
    at each use, because stored positions would occupy registers that the sums need."""

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
