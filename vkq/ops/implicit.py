"""Convolutions as implicit GEMMs: the input is gathered while tiles are loaded, and no im2col matrix is made.

`StagedConv` runs on every device (all dot forms), `CoopmatConv` on matrix units. Both take and give kPackedInt8_4W4C, with the
numbers of `vkq.ops.gemm.Int8Gemm`: the same offsets, multipliers and bits.
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
from .gemm import Int8, Int8Gemm, Rows, Scales, ceil4, signed_zero_point, tile_of

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


class StagedConv(Int8Gemm):
    """A convolution through shared memory, on any device. *weight* is (G, N, K) with k = (kh, kw, ic), ic a multiple of four."""

    def program(self, m4: int) -> Program:
        """The pipeline for a product with so many row blocks."""
        tile = tile_of(self.device, m4, self.n4) or "32x32"
        variant = catalog().find("conv2d_q8ta_q8csw__staged", dot=self.form, out=self.out, tile=tile)
        soft = selftest.report(self.device).soft_float
        return self.device.program(variant, {"ROW_SUMS": self.row_sums, "SOFT_FLOAT": soft})

    def convolve(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        """The whole convolution."""
        rows = rows_of(p)
        push = self.push(rows, 0, rows.blocks) | window(p)
        push |= {
            "group_channels": self.k // (p.kh * p.kw), "x_zero_point": signed_zero_point(self.scales.x), "images": p.n
        }  # fmt: skip
        macs = self.block_macs(rows.blocks)
        recording.dispatch(self.program(rows.blocks), [x, self.weights, self.parameters, y], push, macs)


class CoopmatConv(Int8Gemm):
    """A convolution of one group on matrix units. *weight* is (OC, IC, KH, KW); weight zero points are 0."""

    weight_layout = "kPackedInt8_32K"
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
        if scales.w_zero_point.any():
            return "weight zero points need the sums of x"
        tile = tile_for_conv(problem)
        if tile is None:
            return "the input pixels of a tile do not fit into shared memory"
        out = "f32" if scales.y is None else "q8to"
        return cls(device, weight, scales, catalog().find("conv2d_q8ta_q8csw__coopmat", out=out, shape=shapes[0], tile=tile))

    def program(self, m4: int = 0) -> Program:
        """The pipeline; it is the same for all sizes."""
        return self.device.program(self.variant, {"SOFT_FLOAT": selftest.report(self.device).soft_float}, SUBGROUP)

    def convolve(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        """The whole convolution."""
        rows, defines = rows_of(p), self.variant.defines
        push = {"n4": self.n4, **self.output_push(rows), **window(p), "kh": p.kh}
        push |= {
            "x_zero_point": signed_zero_point(self.scales.x),
            "tiles_h": -(-p.oh // int(defines["TH"])), "tiles_w": -(-p.ow // int(defines["TW"])),
        }  # fmt: skip
        macs = self.block_macs(rows.blocks)
        recording.dispatch(self.program(), [x, self.weights, self.parameters, y], push, macs)


def chunked(weight: Int8, chunk: int) -> Int8:
    """(OC, IC, KH, KW) as (OC, K) with k = (chunk of channels, kh, kw, channel), the channels padded with zeros."""
    oc, ic, kh, kw = weight.shape
    chunks = -(-ic // chunk)
    padded: npt.NDArray[np.int8] = np.zeros((oc, chunks * chunk, kh, kw), np.int8)
    padded[:, :ic] = weight
    return np.ascontiguousarray(padded.reshape(oc, chunks, chunk, kh, kw).transpose(0, 1, 3, 4, 2)).reshape(oc, -1)


def tile_for_conv(p: Conv2dProblem) -> str | None:
    """The tile whose input pixels fit, with as few padding channels as can be; the larger chunk where two are equal."""
    fitting = []
    for tile, variant in _conv_tiles().items():
        d = {name: int(value) for name, value in variant.defines.items()}
        h = (d["TH"] - 1) * p.stride[0] + (p.kh - 1) * p.dilation[0] + 1
        w = (d["TW"] - 1) * p.stride[1] + (p.kw - 1) * p.dilation[1] + 1
        if h * w * (d["CH"] + 16) <= 16 * d["HALO"]:
            fitting.append((-(-p.ic // d["CH"]) * d["CH"], -d["CH"], tile))
    return min(fitting)[2] if fitting else None


def _conv_tiles() -> dict[str, Variant]:
    shader = catalog().shaders["conv2d_q8ta_q8csw__coopmat"]
    return {v.axes["tile"]: v for v in shader.variants if v.axes["out"] == "q8to" and v.axes["shape"] == CONV_SHAPES[0]}
