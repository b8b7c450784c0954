"""Float activations with int8 weights on matrix units of float16 with float32 sums (compute="float16")."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from ..device.profiles import Profile, profile
from ..layout.extent import Spec
from ..layout.pack import layout
from ..probe.matrices import Matrices, advertised_half
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.packing import pack
from ..runtime.plan import Resident
from ..runtime.program import Program, refusals
from ..shader.catalog import catalog
from ..shader.spec import Variant
from .floats import FloatGemm
from .pixels import window
from .weights import Int8, Int32, block_weights

GEMM, SPLIT, CONV = "gemm_q8csw__coopmat", "gemm_q8csw__split_coopmat", "conv2d_q8csw__coopmat"
WEIGHT_LAYOUT = "kPackedInt8_16K"
K_PADDED = 64  # of weights: whole steps of every tile
RUN = 8  # halves of a uvec4
LEAST_ROWS = 8  # with fewer, reading the weights is all the work
LEAST_COLUMNS = 17  # with fewer, most of a matrix would be padding
PARTS = (1, 2, 3, 4, 6, 8)  # of k, that workgroups share
MOST_TILES = 1024  # of a product that is split: each has a counter
STEP = 32  # of k: what a profile's cycles are for


def packed_halves(w: Int8) -> Int32:
    """Weights (G, N, K) as the kernels read them: of each four k the second and third in each other's place
    (shaders/common/coopmat_half.glslh)."""
    swapped = w.reshape(*w.shape[:2], -1, 4)[..., [0, 2, 1, 3]].reshape(w.shape)
    return pack(layout(WEIGHT_LAYOUT), np.ascontiguousarray(swapped))


@dataclasses.dataclass(frozen=True)
class Way:
    """A tile that the device runs, with its matrices, and how many parts of k (at most) each have a workgroup
    of it."""

    variant: Variant
    matrices: Matrices
    parts: int = 1

    def steps(self, k: int) -> int:
        """The steps of a part, in whole turns of the loop."""
        step, turn = (int(self.variant.defines[name]) for name in ("BK", "TURNS"))
        return -(-k // (step * turn * self.parts)) * turn

    def tiles(self, rows: int, n: int, groups: int) -> int:
        """How many there are."""
        tall, wide = (int(self.variant.defines[name]) for name in ("BM", "BN"))
        return groups * -(-rows // tall) * -(-n // wide)

    def may_split(self, rows: int, n: int, groups: int) -> bool:
        """Whether workgroups may share the k of one."""
        tile = self.variant.axes["tile"]
        return tile in catalog().shaders[SPLIT].axes["tile"] and self.tiles(rows, n, groups) <= MOST_TILES

    def cycles(self, known: Profile, rows: int, n: int, k: int, groups: int) -> float:
        """What a product should take (`half_tile_cycles`, `half_part_cycles`)."""
        alone, together = known.half_tile_cycles[self.variant.axes["tile"]]
        tiles, d = self.tiles(rows, n, groups), self.variant.defines
        share = math.ceil(tiles * self.parts / known.multiprocessors)
        loop = self.steps(k) * int(d["BK"]) / STEP * max(alone, together * share)
        if self.parts == 1:
            return loop
        once, each, sums = known.half_part_cycles
        return loop + once + self.parts * (each + sums * tiles * int(d["BM"]) * int(d["BN"]) / 1e6)


class HalfMatrices:
    """What *gemm* computes, on matrix units: a product, or the convolution whose im2col matrix it multiplies,
    of so many *channels* a group (a product's k). The device lists matrices of float16
    (`vkq.probe.matrices.advertised_half`). *narrow*: results may be float16 where x is."""

    def __init__(self, gemm: FloatGemm, channels: int, narrow: bool = False):
        self.gemm, self.channels, self.narrow = gemm, channels, narrow
        self.runs = -(-channels // RUN)
        self.taps = gemm.k // max(channels, 1)
        self.tile: str | None = None  # for tests and measurements: this one instead of the one chosen
        self.parts: int | None = None  # the same: so many parts
        self.k = self.taps * self.runs * RUN
        shape = (gemm.groups, 4 * gemm.n4, self.k + -self.k % K_PADDED)

        def packed() -> Int32:
            w = block_weights(gemm.weight(), gemm.zero_point)[:, :, : gemm.k]
            w = w.reshape(*w.shape[:2], self.taps, channels)
            w = np.pad(w, ((0, 0), (0, 0), (0, 0), (0, self.runs * RUN - channels)))
            w = w.reshape(*w.shape[:2], self.k)
            return packed_halves(np.pad(w, ((0, 0), (0, 0), (0, shape[2] - self.k))))

        self.weights = Resident(gemm.device, 4 * layout(WEIGHT_LAYOUT).words(shape), packed)
        # each layer has its own, so that layers need not wait for each other
        self.counters = Resident(gemm.device, 4 * MOST_TILES, lambda: np.zeros(MOST_TILES, np.uint32))

    @staticmethod
    def worth(rows: int, n: int) -> bool:
        """Whether a product with so many rows and columns should be made on matrix units."""
        return rows >= LEAST_ROWS and n >= LEAST_COLUMNS

    def writes(self, x: Value) -> str:
        """The type of a product's results."""
        return x.spec.dtype if self.narrow and self.gemm.channels % 4 == 0 else "float32"

    def build(self, b: Builder, x: Value, y: Value, rows: int) -> None:
        """A product of so many rows."""
        gemm, way = self.gemm, self.way(rows)
        of = "rows" if self.channels % RUN else "whole_rows"
        slots = [halves(b, x, 1, 1, self.channels, rows, of), *self._constants(b), y]
        whole = "any" if gemm.channels % 4 else "half" if y.spec.dtype == "float16" else "four"
        shader, push = GEMM, {**gemm.push(rows), "k": self.k}
        if way.parts > 1:
            d, tiles = way.variant.defines, way.tiles(rows, 4 * gemm.n4, gemm.groups)
            shader, push["part_steps"] = SPLIT, way.steps(self.k)
            slots += [b.words(way.parts * tiles * int(d["BM"]) * int(d["BN"])), b.constant(self.counters)]
        variant = catalog().find(shader, tile=way.variant.axes["tile"], y=whole)
        b.dispatch(self._program(variant, way.matrices), slots, push, gemm.macs(rows))

    def convolve(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        """A convolution, its rows gathered from the image."""
        gemm, way = self.gemm, self.way(p.gemm_m, CONV)
        push = gemm.push(p.gemm_m, p.oh * p.ow) | window(p) | {
            "c": p.groups * self.runs, "group_channels": self.runs, "ow": p.ow, "kh": p.kh, "k": self.k,
        }  # fmt: skip
        slots = [halves(b, x, p.n, p.groups, self.channels, p.h * p.w), *self._constants(b), y]
        b.dispatch(self._program(way.variant, way.matrices), slots, push, gemm.macs(p.gemm_m))

    def _constants(self, b: Builder) -> list[Value]:
        return [b.constant(self.weights), b.constant(self.gemm.parameters)]

    def _program(self, variant: Variant, matrices: Matrices) -> Program:
        values = {**matrices.constants(variant), **self.gemm.affine.constants}
        return self.gemm.device.program(variant, values, matrices.subgroup)

    def way(self, rows: int, shader: str = GEMM) -> Way:
        """The one that should be the fastest for so many rows."""
        gemm, known = self.gemm, profile(self.gemm.device.capabilities)
        sizes = rows, 4 * gemm.n4, self.k, gemm.groups
        parts = (1,) if shader == CONV else (self.parts,) if self.parts else PARTS
        found = [
            dataclasses.replace(one, parts=count)
            for one in self._able(shader)
            for count in parts
            if count == 1 or one.may_split(rows, 4 * gemm.n4, gemm.groups)
        ]
        return min(found, key=lambda way: way.cycles(known, *sizes))

    def _able(self, shader: str) -> Iterator[Way]:
        """The tiles that the device runs, each with the first matrices of its list that fit."""
        facts = self.gemm.device.capabilities
        for tile in (self.tile,) if self.tile else profile(facts).half_tile_cycles:
            variant = catalog().find(shader, tile=tile, **({} if shader == CONV else {"y": "any"}))
            for matrices in advertised_half(facts):
                values = matrices.constants(variant)
                if fits(variant, matrices) and not refusals(variant, variant.constants(values), facts):
                    yield Way(variant, matrices)
                    break


def halves(
    b: Builder, x: Value, images: int, groups: int, channels: int, plane: int, of: str = "images"
) -> Value:
    """float32 or float16 x as the kernels read it: see shaders/gemm/halves_q8csw.comp."""
    runs = -(-channels // RUN)
    count = images * groups * runs * plane
    y = b.new(Spec((4 * count,), "int32"))
    push: dict[str, int | float] = {
        "images": images, "groups": groups, "group_channels": channels, "runs": runs, "plane": plane,
    }  # fmt: skip
    b.dispatch(b.device.program(catalog().find("halves_q8csw__runs", x=x.spec.dtype, of=of)), [x, y], push)
    return y


def fits(variant: Variant, matrices: Matrices) -> bool:
    """Whether a tile is whole matrices for each subgroup, and rounds of 16 rows."""
    values = matrices.constants(variant)
    down, across = int(values["WGM"]), int(values["WGN"])
    if not (down and across):
        return False
    if int(variant.defines["BK"]) % matrices.k:
        return False
    d = {name: int(size) for name, size in variant.defines.items() if name in ("BM", "TH", "TW", "BN")}
    rows, columns = (d["BM"] if "BM" in d else d["TH"] * d["TW"]) // down, d["BN"] // across
    return rows % 16 == 0 and columns >= matrices.m and columns % matrices.m == 0
