"""Float activations with int8 weights on matrix units of float16 with float32 sums (compute="float16")."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..device.profiles import profile
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
from .weights import Int32, block_weights

GEMM, CONV = "gemm_q8csw__coopmat", "conv2d_q8csw__coopmat"
WEIGHT_LAYOUT = "kPackedInt8_16K"
K_PADDED = 64  # of weights: whole steps of every tile
RUN = 8  # halves of a uvec4
TILES = ("128x256", "128x128", "128x64", "64x64", "64x32", "32x32")  # larger ones read operands less often
LEAST_ROWS = 17  # with fewer, most of a matrix would be padding


class HalfMatrices:
    """What *gemm* computes, on matrix units: a product, or the convolution whose im2col matrix it multiplies,
    of so many *channels* a group (a product's k). The device lists matrices of float16
    (`vkq.probe.matrices.advertised_half`)."""

    def __init__(self, gemm: FloatGemm, channels: int):
        self.gemm, self.channels = gemm, channels
        self.runs = -(-channels // RUN)
        self.taps = gemm.k // max(channels, 1)
        self.tile: str | None = None  # for tests and measurements: this one instead of the one chosen
        self.k = self.taps * self.runs * RUN
        shape = (gemm.groups, 4 * gemm.n4, self.k + -self.k % K_PADDED)

        def packed() -> Int32:
            w = block_weights(gemm.weight(), gemm.zero_point)[:, :, : gemm.k]
            w = w.reshape(*w.shape[:2], self.taps, channels)
            w = np.pad(w, ((0, 0), (0, 0), (0, 0), (0, self.runs * RUN - channels)))
            w = w.reshape(*w.shape[:2], self.k)
            return pack(layout(WEIGHT_LAYOUT), np.pad(w, ((0, 0), (0, 0), (0, shape[2] - self.k))))

        self.weights = Resident(gemm.device, 4 * layout(WEIGHT_LAYOUT).words(shape), packed)

    @staticmethod
    def worth(rows: int, n: int) -> bool:
        """Whether a product with so many rows and columns should be made on matrix units."""
        return rows >= LEAST_ROWS and n >= LEAST_ROWS

    def build(self, b: Builder, x: Value, y: Value, rows: int) -> None:
        """A product of so many rows."""
        self._dispatch(b, GEMM, halves(b, x, rows, 1, self.channels, 1), y, rows, self.gemm.push(rows))

    def convolve(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        """A convolution, its rows gathered from the image."""
        taken = halves(b, x, p.n, p.groups, self.channels, p.h * p.w)
        push = self.gemm.push(p.gemm_m, p.oh * p.ow) | window(p) | {
            "c": p.groups * self.runs, "group_channels": self.runs, "ow": p.ow,
        }  # fmt: skip
        self._dispatch(b, CONV, taken, y, p.gemm_m, push)

    def _dispatch(
        self, b: Builder, shader: str, x: Value, y: Value, rows: int, push: dict[str, int | float]
    ) -> None:
        slots = [x, b.constant(self.weights), b.constant(self.gemm.parameters), y]
        b.dispatch(self.program(shader, rows), slots, {**push, "k": self.k}, self.gemm.macs(rows))

    def program(self, shader: str, rows: int) -> Program:
        """The pipeline for so many rows: the largest tile that the columns fill by half, and of which there
        are enough to fill the device."""
        gemm, facts = self.gemm, self.gemm.device.capabilities
        able = list(self._able(shader))
        busy = profile(facts).multiprocessors

        def fills(variant: Variant) -> bool:
            tall, wide = int(variant.defines["BM"]), int(variant.defines["BN"])
            return 2 * gemm.n > wide and gemm.groups * -(-rows // tall) * -(-gemm.n // wide) >= busy

        variant, matrices = next((one for one in able if fills(one[0])), able[-1])
        values = {**matrices.constants(variant), **gemm.affine.constants}
        return gemm.device.program(variant, values, matrices.subgroup)

    def _able(self, shader: str) -> Iterator[tuple[Variant, Matrices]]:
        """The tiles that the device runs, each with the first matrices of its list that fit."""
        facts = self.gemm.device.capabilities
        for tile in (self.tile,) if self.tile else TILES:
            variant = catalog().find(shader, tile=tile)
            for matrices in advertised_half(facts):
                values = matrices.constants(variant)
                if fits(variant, matrices) and not refusals(variant, variant.constants(values), facts):
                    yield variant, matrices
                    break


def halves(b: Builder, x: Value, images: int, groups: int, channels: int, plane: int) -> Value:
    """float32 or float16 x as the kernels read it: see shaders/gemm/halves_q8csw.comp."""
    runs = -(-channels // RUN)
    count = images * groups * runs * plane
    y = b.new(Spec((4 * count,), "int32"))
    push: dict[str, int | float] = {
        "images": images, "groups": groups, "group_channels": channels, "runs": runs, "plane": plane,
    }  # fmt: skip
    b.dispatch(b.device.program(catalog().find("halves_q8csw__runs", x=x.spec.dtype)), [x, y], push)
    return y


def fits(variant: Variant, matrices: Matrices) -> bool:
    """Whether a tile is whole matrices for each subgroup, and rounds of 16 rows."""
    values = matrices.constants(variant)
    down, across = int(values["WGM"]), int(values["WGN"])
    if not (down and across):
        return False
    if int(variant.defines["BK"]) % matrices.k:
        return False
    rows, columns = int(variant.defines["BM"]) // down, int(variant.defines["BN"]) // across
    return rows % 16 == 0 and columns >= matrices.m and columns % matrices.m == 0


class HalfConvolution:
    """A convolution on matrix units, as methods make it."""

    def __init__(self, gemm: FloatGemm, channels: int):
        self.matrices = HalfMatrices(gemm, channels)

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        self.matrices.convolve(b, p, x, y)
