"""Convolutions on float16 matrix units. A workgroup keeps the input pixels of its tile in shared memory.
The kernel for 1x1 convolutions (`Planes`) or the kernel that gathers pixels (`HalfMatrices`) replaces this
kernel where its estimated time is shorter."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.profiles import Profile, profile
from ..layout.pack import layout
from ..probe import words
from ..probe.matrices import Matrices, advertised_half
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.plan import Resident
from ..runtime.program import refusals
from ..select.path import pairs_refusal
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .cast import converted, result_dtype
from .divisor import divisor
from .floats import FloatGemm
from .half import HalfMatrices
from .half_configs import FLOAT16, STEP, STRAIGHT, STRAIGHT_TILES, fits
from .half_planes import Planes
from .half_weights import (
    PAIRS_LAYOUT,
    WEIGHT_LAYOUT,
    by_eights,
    less_zeros,
    matrices_of,
    packed_halves,
    packed_pairs,
    packed_signs,
)
from .matrix_conv import chunked, halo
from .pixels import window_constants
from .weights import Int32

TILES = "conv2d_q8csw__tiles_coopmat"
CHUNK = 64  # channels whose pixels are in shared memory at once (CH of TILES and STRAIGHT_TILES)
BLOCK = 32  # channels of a chunk whose weights STRAIGHT_TILES loads at once
# Maximum number of registers for the sums and the weights of STRAIGHT_TILES. It multiplies all kernel rows
# at once if their weights fit, else one kernel row at once.
LINES_REGISTERS = 208
RUN = 8  # channels that STRAIGHT_TILES loads at once
VECTOR = 4  # pixels of x that STRAIGHT_TILES loads at once, if rows of x are whole vectors
LINES = {"eights": 8, "fours": 4, "twos": 2}  # pixels in a vector of y, if rows of y are whole vectors


@dataclasses.dataclass(frozen=True)
class PixelTile:
    """A tile of pixels that the device can run, with its matrix shape."""

    variant: Variant
    matrices: Matrices

    def size(self, name: str) -> int:
        """Return a size of the variant (`sizes` in the shader's YAML file)."""
        return int(self.variant.sizes[name])

    def cycles(self, known: Profile, p: Conv2dProblem, dtype: str) -> float:
        """Return the estimated cycles of a convolution with this tile, from the profile's
        `half_pixel_cycles` and `half_pixel_costs`."""
        alone, together, end = known.half_pixel_cycles[self.variant.axes["tile"]]
        tiles = (p.oh, "TH"), (p.ow, "TW"), (p.oc // p.groups, "BN")
        count = p.n * p.groups * math.prod(-(-length // self.size(name)) for length, name in tiles)
        share = math.ceil(count / known.multiprocessors)
        pixels, channels = self.size("TH") * self.size("TW") * math.prod(p.stride) / 128, self.size("CH")
        cost = known.half_pixel_costs["straight" if self.variant.shader == STRAIGHT_TILES else dtype]
        steps = -(-p.ic // (p.groups * channels)) * (p.kh * p.kw * channels / STEP + cost * pixels)
        return max(alone * steps, share * (end + together * steps))


class HalfConvolution:
    """A convolution with a weight (OC, IC/groups, KH, KW) on matrix units, as a `Kernel`. *gemm*: the
    convolution as a matrix product, with the weight (G, N, K)."""

    def __init__(self, gemm: FloatGemm, weight: npt.NDArray[Any], zero_points: Int32, groups: int):
        self.gemm, self.device, self.groups = gemm, gemm.device, groups
        self.tile: str | None = None  # tests and measurements set it to force a tile
        oc, channels, kh, kw = weight.shape
        floats = weight.dtype.kind == "f"
        self.gathered = HalfMatrices(gemm, channels, floats=weight if floats else None)
        self.planes = Planes(self.gathered)
        n, shape = oc // groups, (groups, 4 * gemm.n4, -(-channels // CHUNK) * CHUNK * kh * kw)

        def padded(w: npt.NDArray[Any]) -> npt.NDArray[Any]:
            w = w.astype(np.float16) if floats else w
            return np.pad(w.reshape(groups, n, shape[2]), ((0, 0), (0, shape[1] - n), (0, 0)))

        def halves() -> Int32:
            return (by_eights if floats else packed_halves)(padded(chunked(weight, CHUNK, 1)))

        def pairs() -> Int32:
            if floats:
                return matrices_of(padded(by_columns(weight)))
            signed = self.gathered.signed
            w = by_columns(less_zeros(weight, zero_points) if signed else weight)
            return (packed_signs if signed else packed_pairs)(padded(w))

        size = 8 if floats else 4  # bytes of four weights
        self.halves = Resident(self.device, size * layout(WEIGHT_LAYOUT).words(shape), halves)
        self.pairs = Resident(self.device, size * layout(PAIRS_LAYOUT).words(shape), pairs)
        self._pairs, self._in_order = pairs, dict[bytes, Resident]()

    def weights(self, tile: PixelTile) -> Resident:
        """Return the weights in the order that *tile* reads."""
        if tile.variant.shader == TILES:
            return self.halves
        if tile.variant.axes["w"] == "matrices":
            return self.pairs
        found = words.order(self.device, tile.matrices)
        key, size = found.tobytes(), self.pairs.bytes // words.WORDS * found.size
        if key not in self._in_order:
            self._in_order[key] = Resident(self.device, size, lambda: words.in_order(self._pairs(), found))
        return self._in_order[key]

    def chosen(self, p: Conv2dProblem, dtype: str) -> PixelTile | None:
        """Return the tile with the lowest estimated time. Return None if the device can run no tile, or a
        kernel without a tile of pixels has a lower estimated time."""
        facts, known = self.device.capabilities, profile(self.device.capabilities)
        way = "words" if known.matrix_pairs and not pairs_refusal(self.device) else "matrices"
        lines = _lines(p)
        found = [
            PixelTile(variant, matrices)
            for shader in ((TILES, STRAIGHT_TILES) if _straight(p) else (TILES,))
            for variant in catalog().shaders[shader].variants
            if variant.axes["x"] == dtype and self.tile in (None, variant.axes["tile"])
            if variant.axes.get("w", way) == way and variant.axes.get("lines", lines) == lines
            for matrices in advertised_half(facts, sums=shader == STRAIGHT_TILES)
            if fits(variant, matrices)
            and int(variant.sizes["TW"]) % matrices.n == 0
            and not refusals(variant, variant.constants(self._values(p, variant, matrices)), facts)
        ]
        best = min(found, key=lambda one: one.cycles(known, p, dtype), default=None)
        if best is None or self.tile:
            return best
        other = self._other(p, dtype)[0]
        return best if best.cycles(known, p, dtype) < other else None

    def _other(self, p: Conv2dProblem, dtype: str) -> tuple[float, Planes | HalfMatrices]:
        """Return (estimated cycles, kernel) of the fastest kernel without a tile of pixels: `Planes`, or
        the kernel that gathers rows."""
        planes, gathered = self.planes.cycles(p, dtype), self.gathered.gathered_cycles(p, dtype)
        return (planes, self.planes) if planes < gathered else (gathered, self.gathered)

    def _values(self, p: Conv2dProblem, variant: Variant, matrices: Matrices) -> dict[str, Constant]:
        h, w = halo(p, variant)
        size: dict[str, Constant] = {
            "STRIDE_H": p.stride[0],
            "STRIDE_W": p.stride[1],
            "HALO_H": h,
            "HALO_W": w,
            "KW": p.kw,
        }
        units = matrices.constants(variant)
        if variant.shader == STRAIGHT_TILES:
            d = {name: int(variant.sizes[name]) for name in ("TH", "TW", "BN", "INVOCATIONS")}
            sums, line = d["TH"] * d["TW"] * d["BN"] // d["INVOCATIONS"], d["BN"] // int(units["WGN"]) // 2
            line += self.gathered.floats * line // 2  # float weights have twice as many bytes
            together = p.kh if sums + p.kh * line <= LINES_REGISTERS else 1
            size |= {"LINES": together, "TIMES": p.kh // together, "DILATION_H": p.dilation[0]}
        told = self.gathered.loaders.constants
        size |= {name: told[name] for name in told if name in variant.specialization}
        return {**units, **self.gemm.affine.constants, **size}

    def writes(self, x: Value) -> str:
        return result_dtype(self.device, x)

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        found = self.chosen(p, y.spec.dtype)
        if found is None:
            return self._other(p, y.spec.dtype)[1].convolve(b, p, x, y)
        x = converted(b, x, y.spec.dtype)
        tiles = {"tiles_h": -(-p.oh // found.size("TH")), "tiles_w": -(-p.ow // found.size("TW"))}
        push = self.gemm.push(p.gemm_m, p.oh * p.ow) | window_constants(p) | tiles | {
            "group_channels": p.ic // p.groups, "oh": p.oh, "ow": p.ow, "taps": p.kh * p.kw,
        }  # fmt: skip
        if found.variant.shader == STRAIGHT_TILES:
            tiles["tiles_n"] = -(-4 * self.gemm.n4 // found.size("BN"))
            for name, count in tiles.items():
                push |= divisor(name, count)
        else:
            push["steps"] = p.kh * p.kw * found.size("CH") // found.size("BK")
        values = self._values(p, found.variant, found.matrices)
        program = self.device.program(found.variant, values, found.matrices.subgroup)
        scales = self.gathered.parameters(STRAIGHT if found.variant.shader == STRAIGHT_TILES else FLOAT16)
        slots = [x, b.constant(self.weights(found)), b.constant(scales), y]
        return b.dispatch(program, slots, push, self.gemm.macs(p.gemm_m))


def by_columns(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a weight (OC, IC, KH, KW) in the order of STRAIGHT_TILES: (OC, K) with k = (chunk of channels,
    kw, block of channels, kh, channel)."""
    w, (oc, _, kh, kw) = chunked(weight, CHUNK, 1), weight.shape
    blocks: npt.NDArray[Any] = w.reshape(oc, -1, kh, kw, CHUNK // BLOCK, BLOCK).transpose(0, 1, 3, 4, 2, 5)
    return blocks.reshape(w.shape)


def _lines(p: Conv2dProblem) -> str | None:
    """Return the name in LINES of the longest vector whose length divides the rows of y and, up to a length
    of VECTOR, the rows of x. Return None if there is no such vector."""
    whole = (name for name, size in LINES.items() if p.w % min(size, VECTOR) == 0 == p.ow % size)
    return next(whole, None)


def _straight(p: Conv2dProblem) -> bool:
    """Return True if STRAIGHT_TILES supports the problem's image rows and channels, the stride is 1, and
    the filter has several taps. Other strides and filters have not been timed."""
    channels = p.ic // p.groups
    timed = p.kh * p.kw > 1 and p.stride == (1, 1)
    return timed and channels > 0 == channels % RUN and _lines(p) is not None
