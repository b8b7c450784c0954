"""The int8 matrix product on matrix units (VK_KHR_cooperative_matrix): its tiles, weights and dispatches.

Activations are in kPackedInt8_16C. In this layout, an image is a matrix whose rows are pixels. So a row of
the product is a pixel, or a row of a linear layer's input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.profiles import profile
from ..device.tuner import ranked
from ..layout.pack import layout
from ..probe.matrices import Matrices, advertised, counted
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.packing import pack
from ..runtime.plan import Resident
from ..runtime.program import Program
from ..select import registers
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .matrix_tiles import GEMM, TURN, WIDE_GEMM, Tiling, tilings
from .split import counters
from .weights import PARAMETER_BYTES, Arithmetic, Int8, Int32, block_weights, ceil4, zeros_behind

SPLIT = "gemm_q8ta_q8csw__split_coopmat"  # the shader with split-K
DYNAMIC = "gemm_dq8ca_q8csw__coopmat"  # the shader for an x that is quantized by rows
SIGN_BITS = np.uint32(0x80808080)
NOTHING: Mapping[str, Any] = {}
KIND = "tile of matrix units"  # the name of these tiles in the tuner's rankings (`vkq.device.tuner`)
# Minimum number of rows: with fewer, loading the weights takes most of the time, and most of a matrix is
# padding.
LEAST_ROWS = 29


def whole_blocks(channels: int, groups: int) -> bool:
    """Return True if each group's channels are whole blocks of 16. The last block of a single group may be
    padded."""
    return groups == 1 or channels // groups % 16 == 0


@dataclasses.dataclass(frozen=True)
class Pixels:
    """The rows of a product, which are the pixels of y, and the pixels of x that they read. A linear layer
    has images of one pixel."""

    rows: int
    x_rows: int  # pixels of x
    pixels: int = 1  # pixels of an image of y
    ow: int = 1  # pixels of an image row of y
    x_pixels: int = 1  # pixels of an image of x
    x_w: int = 1  # pixels of an image row of x
    stride: tuple[int, int] = (1, 1)

    @classmethod
    def of(cls, p: Conv2dProblem) -> Pixels:
        """Return the rows of the product that computes a 1x1 convolution without padding."""
        return cls(p.gemm_m, p.n * p.h * p.w, p.oh * p.ow, p.ow, p.h * p.w, p.w, p.stride)

    @property
    def push(self) -> dict[str, int | float]:
        return {
            "rows": self.rows, "pixels": self.pixels, "ow": self.ow, "x_rows": self.x_rows,
            "x_pixels": self.x_pixels, "x_w": self.x_w, "stride_h": self.stride[0],
            "stride_w": self.stride[1],
        }  # fmt: skip


class MatrixWeights:
    """Weights for matrix units, with the parameters of the epilogue.

    *weight*: a function that returns the weights minus zero points (`centred`) with this *shape* (G, N, K)
    when a kernel needs them; K is already padded with zeros. *channels*: the number of output channels
    without padding.
    """

    def __init__(
        self,
        device: Device,
        shape: tuple[int, int, int],
        weight: Callable[[], npt.NDArray[Any]],
        arithmetic: Arithmetic,
        form: str,
        channels: int,
    ):
        self.device, self.arithmetic, self.form, self.channels = device, arithmetic, form, channels
        zero_point = arithmetic.w_zero_point.reshape(shape[0], -1)
        self.row_sums = form == "u8u8" or bool(zero_point.any())
        self.groups, n, self.k_padded = shape
        self.n = 4 * ceil4(n)

        def blocked() -> Int8:
            return block_weights(plus(weight(), zero_point), zero_point)

        def packed() -> npt.NDArray[Any]:
            found = pack(layout("kPackedInt8_16K"), blocked())
            return found.view(np.uint32) ^ SIGN_BITS if form == "u8u8" else found

        size = 4 * layout("kPackedInt8_16K").words((self.groups, self.n, 4 * ceil4(self.k_padded)))
        self.weights = Resident(device, size, packed)
        self.parameters = arithmetic.after.before(
            device,
            self.groups * self.n // 4 * PARAMETER_BYTES,
            lambda: arithmetic.channel_parameters(blocked(), form, zero_point),
        )
        self.counters = counters(device)

    @property
    def push(self) -> dict[str, int | float]:
        """The push constants for the weights and the epilogue."""
        sizes = {"n": self.n, "groups": self.groups, "channels": self.channels}
        return {**sizes, **self.arithmetic.epilogue}

    def program(self, variant: Variant, matrices: Matrices, **constants: Constant) -> Program:
        """Return the pipeline of a variant with these matrices."""
        constants |= {**matrices.constants(variant), "ROW_SUMS": self.row_sums}
        constants |= self.arithmetic.after.constants
        return self.device.program(variant, constants, matrices.subgroup)

    def macs(self, rows: int) -> int:
        """Return the number of multiply-adds for *rows* rows, padding of the weights included."""
        return int(rows * self.n * self.k_padded * self.groups)

    def slots(self, b: Builder, x: Value, y: Value, extra: Sequence[Value] = ()) -> list[Value]:
        """Return the values that a kernel binds: x, the weights, the parameters of the epilogue, y and
        *extra*."""
        return [x, b.constant(self.weights), b.constant(self.parameters), y, *extra]


def counts(device: Device, **trips: Constant) -> dict[str, Constant]:
    """Return *trips*, the trip counts of a problem's loops, if the device's compiler needs them as
    constants, else an empty dict."""
    return trips if counted(device.capabilities) else {}


def centred(weight: Int8, zero_point: Int32) -> npt.NDArray[Any]:
    """Return the weight (OC, ...) minus its zero points (OC,), as int16. Zeros can pad the result; the
    weight itself would need its zero points as padding."""
    return plus(weight, -zero_point, np.int16)


def plus(weight: npt.NDArray[Any], points: npt.NDArray[np.int32], dtype: type = np.int8) -> npt.NDArray[Any]:
    """Return weight + points as *dtype*, or the weight itself if all points are 0. *points* has the leading
    axes of the weight."""
    if not points.any():
        return weight
    return (
        weight + points.reshape(points.shape + (1,) * (weight.ndim - points.ndim)).astype(np.int16)
    ).astype(dtype)


class MatrixGemm:
    """A product on matrix units. *weight*: a function that returns the int8 weights (G * N, K) of this
    *shape*. With several groups, each group's channels are whole blocks of 16."""

    def __init__(
        self,
        device: Device,
        shape: tuple[int, int],
        weight: Callable[[], Int8],
        arithmetic: Arithmetic,
        groups: int = 1,
        turn: int = TURN,
    ):
        channels, self.k = shape
        self.device = device
        self.matrices = advertised(device.capabilities)[0]
        grouped = (groups, channels // groups, self.k + -self.k % turn)

        def padded() -> npt.NDArray[Any]:
            found = centred(weight(), arithmetic.w_zero_point)
            return zeros_behind(found, grouped[2] - self.k).reshape(grouped)

        self.packed = MatrixWeights(device, grouped, padded, arithmetic, self.matrices.form, channels)
        self.whole: str | None = (
            # `whole`: the shader that computes all of k; `split`: the shader that computes one part of k.
            f"gemm_{arithmetic.family}__coopmat"
        )
        self.split = SPLIT if arithmetic.family == "q8ta_q8csw" else None
        self.listed: tuple[Tiling, ...] | None = None  # tilings that replace the profile's tilings
        self.tiling: Tiling | None = None  # tests and measurements set it to force a tiling

    @staticmethod
    def worth(rows: int) -> bool:
        """Return True if matrix units are faster than dot products for *rows* rows."""
        return rows >= LEAST_ROWS and not registers.is_picked()

    @property
    def wide(self) -> bool:
        """True if the product can use slice-K tiles: it belongs to a linear layer with signed operands
        (s8s8) and no weight zero points."""
        return self.whole == GEMM and self.packed.form == "s8s8" and not self.packed.row_sums

    def chosen(self, rows: int) -> tuple[Tiling, Variant]:
        """Return the best tiling that the device can run for this number of rows, and its variant. If the
        device can run no tiling, return the last."""
        found = None
        for found in self._fitting(rows):
            if self.matrices.runs(found[1], self.device.capabilities):
                return found
        assert found is not None
        return found

    def _fitting(self, rows: int) -> Iterator[tuple[Tiling, Variant]]:
        """Yield the tilings that fit the device's matrices, each with its variant, the best tiling first."""
        w = self.packed
        how = self.whole is None, self.split is not None, self.wide, w.arithmetic.after.in_place
        known = profile(self.device.capabilities)
        listed = self.listed or ranked(KIND, tilings(known, rows, w.n, self.k, w.groups, *how))
        for tiling in (self.tiling,) if self.tiling else listed:
            if counted(self.device.capabilities) and tiling.parts > 1:
                continue
            if tiling.tile in catalog().shaders[self._shader(tiling)].axes["tile"]:
                variant = self._variant(tiling)
                if self.matrices.fit(variant, int(variant.sizes["BM"])):
                    yield tiling, variant

    def _shader(self, tiling: Tiling) -> str:
        whole = WIDE_GEMM if tiling.wide else self.whole
        shader = whole if tiling.parts == 1 and whole else self.split
        assert shader is not None
        return shader

    def _variant(self, tiling: Tiling) -> Variant:
        w = self.packed
        return catalog().find(self._shader(tiling), dot=w.form, tile=tiling.tile, **w.arithmetic.axes)

    def build(
        self,
        b: Builder,
        x: Value,
        y: Value,
        pixels: Pixels,
        extra: Sequence[Value] = (),
        push: Mapping[str, int | float] = NOTHING,
    ) -> None:
        """Add the product to a plan. x, and y if it is int8, are in kPackedInt8_16C; a float32 y is [image,
        channel, pixel].

        extra: the scale and zero point of every row, if x is quantized by rows. push: further push
        constants for a convolution's shader.
        """
        tiling, variant = self.chosen(pixels.rows)
        w = self.packed
        step = TURN if tiling.wide else int(variant.sizes["BK"])
        k = self.k if tiling.short else w.k_padded
        steps = -(-k // step)
        trips = -(-steps * step // int(variant.sizes["BK"]))
        program = w.program(variant, self.matrices, **counts(self.device, TRIPS=trips))
        said = {**w.push, **pixels.push, "k16": -(-self.k // 16), "steps": steps, **push}
        if variant.shader == self.split:
            said["part_steps"] = tiling.part(w.k_padded) // step
            extra = [b.words(self._part_words(tiling, program, pixels.rows)), b.constant(w.counters)]
        slots, in_place = w.slots(b, x, y, extra), w.arithmetic.after.in_place
        b.dispatch(program, slots, said, w.macs(pixels.rows), in_place)

    def _part_words(self, tiling: Tiling, program: Program, rows: int) -> int:
        """Return the words of scratch memory for split-K: partial sums of the results and of x's rows
        (coopmat_split.glslh)."""
        w = self.packed
        parts = tiling.used_parts(w.k_padded)
        if parts == 1:
            return 4
        tile_rows, outputs = tiling.size
        if w.row_sums:
            outputs += int(program.constants["WGN"]) * self.matrices.m
        return parts * tiling.tiles(rows, w.n, w.groups) * tile_rows * outputs
