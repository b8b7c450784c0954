"""Convolutions as implicit GEMMs: the input is gathered while tiles are loaded, and no im2col matrix is made.

`convolve_staged` runs on every device (all dot forms), `CoopmatConv` on matrix units. Both take and give kPackedInt8_4W4C, with
the numbers of `vkq.ops.gemm.Int8Gemm`: the same offsets, multipliers and bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..problem import Conv2dProblem
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..shader.catalog import catalog
from ..shader.spec import Variant
from . import selftest
from .coopmat import SUBGROUP, advertised
from .gemm import Int8, Int8Gemm, Rows, Scales, ceil4, signed_zero_point, staged_tile

CONV_SHAPES = ("16x8x32", "16x16x32")


def rows_of(p: Conv2dProblem) -> Rows:
    """The rows of a convolution's product: output pixels, the width rounded up to four."""
    return Rows(p.n * p.oh, p.oh, p.ow, 4 * ceil4(p.ow))


def window(p: Conv2dProblem) -> dict[str, int | float]:
    """The push constants that say how the filter moves over the input."""
    return {
        "c": p.ic, "h": p.h, "w": p.w, "kw": p.kw, "stride_h": p.stride[0], "stride_w": p.stride[1], "pad_t": p.padding[0],
        "pad_l": p.padding[1], "dilation_h": p.dilation[0], "dilation_w": p.dilation[1],
    }  # fmt: skip


def staged_program(gemm: Int8Gemm, p: Conv2dProblem) -> Program | None:
    """The pipeline of the convolution through shared memory, or None where im2col and the plain kernel do as well.

    It takes the weights that *gemm* holds, k = (kh, kw, ic), and groups of a multiple of four input channels.
    """
    tile = gemm.tile or staged_tile(gemm.device, rows_of(p).blocks, gemm.n4)
    if tile is None or gemm.k == 0 or gemm.k // (p.kh * p.kw) % 4 or gemm.weight_layout != Int8Gemm.weight_layout:
        return None
    variant = catalog().find("conv2d_q8ta_q8csw__staged", dot=gemm.form, out=gemm.out, tile=tile)
    return gemm.device.program(variant, gemm.constants())


def convolve_staged(gemm: Int8Gemm, program: Program, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
    """The whole convolution in one dispatch of `staged_program`'s pipeline."""
    rows = rows_of(p)
    push = gemm.push(rows, 0, rows.blocks) | window(p)
    push |= {"group_channels": gemm.k // (p.kh * p.kw), "x_zero_point": signed_zero_point(gemm.scales.x), "images": p.n}
    recording.dispatch(program, [x, gemm.weights, gemm.parameters, y], push, gemm.block_macs(rows.blocks))


class CoopmatConv(Int8Gemm):
    """A convolution of one group on matrix units. *weight* is (OC, IC, KH, KW); weight zero points are 0."""

    weight_layout = "kPackedInt8_16K"
    shape: str | None = None  # for measurements: this shape instead of the preferred one

    def __init__(self, device: Device, weight: Int8, scales: Scales, variant: Variant):
        self.variant = variant
        zeros = np.zeros((1, weight.shape[0]), np.int32)
        ordered = chunked(weight, int(variant.defines["CH"]))
        super().__init__(device, ordered[None], zeros, scales, "s8s8", weight.shape[0])

    @classmethod
    def of(cls, device: Device, weight: Int8, scales: Scales, problem: Conv2dProblem) -> CoopmatConv | str:
        """For convolutions like this one (sizes of the image and batch may differ), or why the device cannot."""
        shapes = [s for s in CONV_SHAPES if s in advertised(device.capabilities)]
        if not shapes:
            return "the device lists no int8 cooperative matrix of 16x8x32 or 16x16x32"
        if problem.groups != 1 or problem.ic == 0:
            return "one group with input channels is needed"
        if scales.w_zero_point.any():
            return "weight zero points need the sums of x"
        tile = tile_for_conv(problem)
        if tile is None:
            return "the input pixels of a tile do not fit into shared memory"
        out = "f32" if scales.y is None else "q8to"
        return cls(device, weight, scales, catalog().find("conv2d_q8ta_q8csw__coopmat", out=out, shape=shapes[0], tile=tile))

    def pipeline(self, p: Conv2dProblem) -> Program:
        """The pipeline; it is the same for all sizes of image and batch."""
        h, w = halo(p, self.variant)
        constants = {"STRIDE_H": p.stride[0], "STRIDE_W": p.stride[1], "HALO_H": h, "HALO_W": w}
        return self.device.program(self.variant, {**constants, "SOFT_FLOAT": selftest.report(self.device).soft_float}, SUBGROUP)

    def convolve(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        """The whole convolution."""
        rows, defines = rows_of(p), self.variant.defines
        push = {"n4": self.n4, **self.output_push(rows), **window(p), "kh": p.kh}
        del push["stride_h"], push["stride_w"]
        push |= {
            "x_zero_point": signed_zero_point(self.scales.x),
            "tiles_h": -(-p.oh // int(defines["TH"])), "tiles_w": -(-p.ow // int(defines["TW"])),
        }  # fmt: skip
        macs = self.block_macs(rows.blocks)
        recording.dispatch(self.pipeline(p), [x, self.weights, self.parameters, y], push, macs)


def chunked(weight: Int8, chunk: int) -> Int8:
    """(OC, IC, KH, KW) as (OC, K) with k = (chunk of channels, kh, kw, channel), the channels padded with zeros."""
    oc, ic, kh, kw = weight.shape
    chunks = -(-ic // chunk)
    padded: npt.NDArray[np.int8] = np.zeros((oc, chunks * chunk, kh, kw), np.int8)
    padded[:, :ic] = weight
    return np.ascontiguousarray(padded.reshape(oc, chunks, chunk, kh, kw).transpose(0, 1, 3, 4, 2)).reshape(oc, -1)


def halo(p: Conv2dProblem, variant: Variant) -> tuple[int, int]:
    """The input pixels under a tile of outputs: (lines, columns)."""
    tile_h, tile_w = int(variant.defines["TH"]), int(variant.defines["TW"])
    h = (tile_h - 1) * p.stride[0] + (p.kh - 1) * p.dilation[0] + 1
    return h, (tile_w - 1) * p.stride[1] + (p.kw - 1) * p.dilation[1] + 1


def tile_for_conv(p: Conv2dProblem) -> str | None:
    """The tile whose input pixels fit, with as few padding channels as can be; the larger chunk where two are equal."""
    fitting = []
    for tile, variant in _conv_tiles().items():
        d = {name: int(value) for name, value in variant.defines.items()}
        h, w = halo(p, variant)
        if h * w * (d["CH"] + 16) <= 16 * d["HALO"]:
            fitting.append((-(-p.ic // d["CH"]) * d["CH"], -d["CH"], tile))
    return min(fitting)[2] if fitting else None


def _conv_tiles() -> dict[str, Variant]:
    shader = catalog().shaders["conv2d_q8ta_q8csw__coopmat"]
    return {v.axes["tile"]: v for v in shader.variants if v.axes["out"] == "q8to" and v.axes["shape"] == CONV_SHAPES[0]}
