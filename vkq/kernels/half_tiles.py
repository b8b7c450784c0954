"""Convolutions on matrix units of float16: the input pixels of a tile in shared memory, or read as planes or
gathered where that should be faster."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ..device.profiles import Profile, profile
from ..layout.pack import layout
from ..probe.matrices import Matrices, advertised_half
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.plan import Resident
from ..runtime.program import refusals
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .cast import converted, kept
from .floats import FloatGemm
from .half import WEIGHT_LAYOUT, HalfMatrices, packed_halves
from .half_planes import Planes
from .half_ways import STEP, fits
from .matrix_conv import chunked, halo
from .pixels import window
from .weights import Int8, Int32

TILES = "conv2d_q8csw__tiles_coopmat"
CHUNK = 64  # channels whose pixels are in shared memory at a time, of every tile


@dataclasses.dataclass(frozen=True)
class PixelTile:
    """A tile of pixels that the device runs, with its matrices."""

    variant: Variant
    matrices: Matrices

    def size(self, name: str) -> int:
        """A number of its YAML."""
        return int(self.variant.defines[name])

    def cycles(self, known: Profile, p: Conv2dProblem, dtype: str) -> float:
        """What a convolution should take (`half_pixel_cycles`, `half_pixel_costs`)."""
        alone, together = known.half_pixel_cycles[self.variant.axes["tile"]]
        tiles = (p.oh, "TH"), (p.ow, "TW"), (p.oc // p.groups, "BN")
        count = p.n * p.groups * math.prod(-(-length // self.size(name)) for length, name in tiles)
        share = math.ceil(count / known.multiprocessors)
        pixels = self.size("TH") * self.size("TW") / 128
        chunk = p.kh * p.kw * CHUNK / STEP + known.half_pixel_costs[dtype] * pixels
        return -(-p.ic // (p.groups * CHUNK)) * chunk * max(alone, together * share)


class HalfConvolution:
    """A convolution (OC, IC/groups, KH, KW) on matrix units, as methods make it. *gemm* is the product of its
    im2col matrix."""

    def __init__(self, gemm: FloatGemm, weight: Int8, zero_points: Int32, groups: int):
        self.gemm, self.device, self.groups = gemm, gemm.device, groups
        self.tile: str | None = None  # for tests and measurements: this one instead of the one chosen
        oc, channels, kh, kw = weight.shape
        self.gathered = HalfMatrices(gemm, channels)
        self.planes = Planes(self.gathered)
        n = oc // groups
        self.k = -(-channels // CHUNK) * CHUNK * kh * kw
        shape = (groups, 4 * gemm.n4, self.k)

        def packed() -> Int32:
            w = chunked(weight, CHUNK, 1).reshape(groups, n, self.k)
            return packed_halves(np.pad(w, ((0, 0), (0, shape[1] - n), (0, 0))))

        self.weights = Resident(self.device, 4 * layout(WEIGHT_LAYOUT).words(shape), packed)

    def chosen(self, p: Conv2dProblem, dtype: str) -> PixelTile | None:
        """The tile that should be the fastest; None where a kernel without one should be."""
        facts, known = self.device.capabilities, profile(self.device.capabilities)
        found = [
            PixelTile(variant, matrices)
            for variant in catalog().shaders[TILES].variants
            if variant.axes["x"] == dtype and self.tile in (None, variant.axes["tile"])
            for matrices in advertised_half(facts)
            if fits(variant, matrices)
            and int(variant.defines["TW"]) % matrices.n == 0
            and not refusals(variant, variant.constants(self._values(p, variant, matrices)), facts)
        ]
        best = min(found, key=lambda one: one.cycles(known, p, dtype), default=None)
        if best is None or self.tile:
            return best
        other = self._other(p)[0]
        return best if best.cycles(known, p, dtype) < other else None

    def _other(self, p: Conv2dProblem) -> tuple[float, Planes | HalfMatrices]:
        """The kernel without a tile of pixels that should be faster, with its cycles: one that reads planes,
        or one that gathers."""
        planes, gathered = self.planes.cycles(p), self.gathered.gathered_cycles(p)
        return (planes, self.planes) if planes < gathered else (gathered, self.gathered)

    def _values(self, p: Conv2dProblem, variant: Variant, matrices: Matrices) -> dict[str, Constant]:
        h, w = halo(p, variant)
        size = {"STRIDE_H": p.stride[0], "STRIDE_W": p.stride[1], "HALO_H": h, "HALO_W": w, "KW": p.kw}
        return {**matrices.constants(variant), **self.gemm.affine.constants, **size}

    def writes(self, x: Value) -> str:
        """The type of its results."""
        return kept(self.device, x)

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        found = self.chosen(p, y.spec.dtype)
        if found is None:
            return self._other(p)[1].convolve(b, p, x, y)
        x = converted(b, x, y.spec.dtype)
        push = self.gemm.push(p.gemm_m, p.oh * p.ow) | window(p) | {
            "k": self.k, "group_channels": p.ic // p.groups, "oh": p.oh, "ow": p.ow, "taps": p.kh * p.kw,
            "steps": p.kh * p.kw * CHUNK // found.size("BK"), "tiles_h": -(-p.oh // found.size("TH")),
            "tiles_w": -(-p.ow // found.size("TW")),
        }  # fmt: skip
        values = self._values(p, found.variant, found.matrices)
        program = self.device.program(found.variant, values, found.matrices.subgroup)
        slots = [x, b.constant(self.weights), b.constant(self.gemm.parameters), y]
        return b.dispatch(program, slots, push, self.gemm.macs(p.gemm_m))
