"""The tiles of products on matrix units with float32 sums: how operands are loaded, and the size, the
number of parts of k and the estimated cycles of a tile."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from ..device.capabilities import Capabilities
from ..device.profiles import Profile, profile
from ..probe.matrices import BRAIN, HALF, Matrices, advertised_half
from ..runtime.builder import Builder, Value
from ..runtime.plan import Resident
from ..runtime.program import refusals
from ..shader.catalog import catalog
from ..shader.spec import Variant
from .split import MOST_TILES

K_SPLITS = (1, 2, 3, 4, 6, 8)  # the possible numbers of parts of k
WORDS_OUTPUTS = 32  # the kind WORDS (below): outputs whose weights are contiguous, for each block of k
LEAST_COLUMNS = 17  # minimum number of columns of a product; with fewer, most of a matrix would be padding
STEP = 32  # elements along k for which a profile states the cycles of a tile


@dataclasses.dataclass(frozen=True)
class OperandKind:
    """How the operands of matrices are loaded."""

    form: str  # the type of the elements
    product: str  # the shader for products or convolutions
    split: str  # the shader with split-K
    cycles: str  # the profile's field with the cycles of each tile

    def of(self, known: Profile) -> Mapping[str, tuple[int, ...]]:
        """Return the profile's cycles of each tile."""
        found: Mapping[str, tuple[int, ...]] = getattr(known, self.cycles)
        return found

    def able(self, facts: Capabilities, forced: str | None = None) -> Iterator[GemmConfig]:
        """Yield the tiles that a device can run, each with the first listed matrix shape that fits. forced:
        the only tile to yield; None: all."""
        for tile in self.of(profile(facts)):
            if forced not in (None, tile):
                continue
            any_y = {"y": "any"} if "y" in catalog().shaders[self.product].axes else {}
            variant = catalog().find(self.product, tile=tile, **any_y)
            for matrices in advertised_half(facts, self.form):
                values = matrices.constants(variant)
                if fits(variant, matrices) and not refusals(variant, variant.constants(values), facts):
                    yield GemmConfig(variant, matrices, self)
                    break


# Operands are loaded into shared memory first.
FLOAT16 = OperandKind(HALF, "gemm_q8csw__coopmat", "gemm_q8csw__split_coopmat", "half_tile_cycles")
# Weights are loaded from memory directly into matrices.
STRAIGHT = OperandKind(
    HALF, "gemm_q8csw__straight_coopmat", "gemm_q8csw__split_straight_coopmat", "straight_tile_cycles"
)
# Like STRAIGHT, but matrices are assembled in registers from words of memory; x must be float16.
WORDS = OperandKind(HALF, "gemm_q8csw__words_coopmat", "gemm_q8csw__split_words_coopmat", "words_tile_cycles")
# x is float32, and split into three bfloat16 parts.
PARTS_OF_FLOAT32 = OperandKind(
    BRAIN, "gemm_q8csw__parts_coopmat", "gemm_q8csw__split_parts_coopmat", "parts_tile_cycles"
)
GATHERED = {  # convolutions whose kernel gathers the rows from the image
    HALF: OperandKind(HALF, "conv2d_q8csw__coopmat", "conv2d_q8csw__split_coopmat", "half_gathered_cycles"),
    BRAIN: OperandKind(BRAIN, "conv2d_q8csw__parts_coopmat", "", "parts_gathered_cycles"),
}
PLANES = {  # 1x1 convolutions whose kernel reads pixels of an image of this dtype
    (HALF, "float16"): OperandKind(HALF, "conv2d_q8csw__planes_coopmat", "", "half_plane_cycles"),
    (HALF, "float32"): OperandKind(HALF, "conv2d_q8csw__planes_coopmat", "", "float32_plane_cycles"),
    (BRAIN, "float32"): OperandKind(BRAIN, "conv2d_q8csw__planes_parts_coopmat", "", "parts_plane_cycles"),
}
STRAIGHT_TILES = "conv2d_q8csw__straight_coopmat"  # like STRAIGHT, for convolutions in tiles of pixels


@dataclasses.dataclass(frozen=True)
class GemmConfig:
    """A tile that the device can run, its matrix shape, and the maximum number of parts of k. A workgroup
    computes one part."""

    variant: Variant
    matrices: Matrices
    of: OperandKind = FLOAT16
    parts: int = 1

    def steps(self, k: int) -> int:
        """Return the number of steps along k in a part, a multiple of the steps of a loop iteration."""
        step, turn = (int(self.variant.sizes[name]) for name in ("BK", "TURNS"))
        return -(-k // (step * turn * self.parts)) * turn

    def tiles(self, rows: int, n: int, groups: int) -> int:
        """Return the number of tiles of a product."""
        tall, wide = (int(self.variant.sizes[name]) for name in ("BM", "BN"))
        return groups * -(-rows // tall) * -(-n // wide)

    def may_split(self, rows: int, n: int, groups: int) -> bool:
        """Return True if several workgroups may share the sum over k of a tile."""
        tile = self.variant.axes["tile"]
        return (
            tile in catalog().shaders[self.of.split].axes["tile"]
            and self.tiles(rows, n, groups) <= MOST_TILES
        )

    def takes(self, k: int) -> bool:
        """Return True if the tile supports this k. WORDS supports only multiples of BK * TURNS."""
        step, turn = (int(self.variant.sizes[name]) for name in ("BK", "TURNS"))
        return self.of != WORDS or k % (step * turn) == 0

    def sharing(
        self, b: Builder, counters: Resident, rows: int, n: int, k: int, groups: int
    ) -> tuple[list[Value], dict[str, int]]:
        """Return the values to bind and the push constants for split-K."""
        if self.parts == 1:
            return [], {}
        d, tiles = self.variant.sizes, self.tiles(rows, n, groups)
        sums = b.words(self.parts * tiles * int(d["BM"]) * int(d["BN"]))
        return [sums, b.constant(counters)], {"part_steps": self.steps(k)}

    def cycles(self, known: Profile, rows: int, n: int, k: int, groups: int) -> float:
        """Return the estimated cycles of a product, from the profile's cycles of the tile and
        `half_part_cycles`."""
        alone, together, *third = self.of.of(known)[self.variant.axes["tile"]]
        tiles, d = self.tiles(rows, n, groups), self.variant.sizes
        share = last = math.ceil(tiles * self.parts / known.multiprocessors)
        end = share * third[0] if third and self.of != WORDS else 0
        if self.of == WORDS:
            last = (share - 1) % third[0] + 1  # workgroups of a multiprocessor in the last round
        elif self.of in GATHERED.values() and share > 1:
            share = last = share + share % 2
        each_step = together * (share - last) + max(alone, together * last)
        loop = self.steps(k) * int(d["BK"]) / STEP * each_step
        if self.parts == 1:
            return loop + end
        once, each, sums = known.half_part_cycles
        return loop + once + self.parts * (each + sums * tiles * int(d["BM"]) * int(d["BN"]) / 1e6)


def fits(variant: Variant, matrices: Matrices) -> bool:
    """Return True if each subgroup's part of a tile consists of whole matrices, and its number of rows is a
    multiple of 16 (for STRAIGHT_TILES: of the tile's width)."""
    values = matrices.constants(variant)
    down, across = int(values["WGM"]), int(values["WGN"])
    if not (down and across):
        return False
    if int(variant.sizes.get("BK", matrices.k)) % matrices.k:
        return False
    straight = variant.shader == STRAIGHT_TILES or any(
        variant.shader in (of.product, of.split) for of in (STRAIGHT, WORDS)
    )
    if straight and (matrices.m, matrices.k) != (16, 16):
        return False  # weights are stored as matrices of 16 x 16
    d = {name: int(size) for name, size in variant.sizes.items() if name in ("BM", "TH", "TW", "BN")}
    rows, columns = (d["BM"] if "BM" in d else d["TH"] * d["TW"]) // down, d["BN"] // across
    if variant.shader in (WORDS.product, WORDS.split) and columns % WORDS_OUTPUTS:
        return False
    whole = d["TW"] if variant.shader == STRAIGHT_TILES else 16
    return rows % whole == 0 and columns >= matrices.m and columns % matrices.m == 0
