"""Convolutions as implicit GEMMs: the input is gathered while tiles are loaded, and no im2col matrix is made.

`Implicit` runs on every device (all dot forms), `CoopmatConv` on matrix units. Both take and give kPackedInt8_4W4C, with the
numbers of `vkq.ops.gemm.Int8Gemm`: the same offsets, multipliers and bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..problem import Conv2dProblem
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..shader.catalog import catalog
from ..shader.spec import Value, Variant
from . import selftest
from .conv_gemm import pixel_rows
from .coopmat import SUBGROUP, advertised
from .gemm import SMALLEST_STAGED, Int8, Int8Gemm, Scales, signed_zero_point, staged_tile

if TYPE_CHECKING:
    from .conv2d import Conv2d

CONV_SHAPES = ("16x8x32", "16x16x32")  # of matrices, in order of preference


def window(p: Conv2dProblem) -> dict[str, int | float]:
    """The push constants that say how the filter moves over the input."""
    return {
        "c": p.ic, "h": p.h, "w": p.w, "kw": p.kw, "stride_h": p.stride[0], "stride_w": p.stride[1], "pad_t": p.padding[0],
        "pad_l": p.padding[1], "dilation_h": p.dilation[0], "dilation_w": p.dilation[1],
    }  # fmt: skip


class Implicit:
    """A convolution through shared memory. *gemm* has the weight as (G, N, K) with k = (kh, kw, ic), ic a multiple of four."""

    def __init__(self, gemm: Int8Gemm, tile: str | None = None):
        self.gemm = gemm
        self.tile = tile

    @staticmethod
    def refusal(layer: Conv2d, p: Conv2dProblem) -> str | None:
        """Why it cannot take a layer and its problem; None where it can."""
        if layer.scales is None:
            return "its activations are float"
        channels = layer.int8_gemm.k // max(p.kh * p.kw, 1)
        return f"groups of {channels} input channels are not whole words of 4" if channels % 4 or not channels else None

    @staticmethod
    def fits(device: Device, p: Conv2dProblem) -> bool:
        """Whether the convolution fills tiles through shared memory."""
        return staged_tile(device, pixel_rows(p, pad=True).blocks, p.oc // p.groups // 4) is not None

    def program(self, p: Conv2dProblem) -> Program:
        """The pipeline for this problem."""
        gemm = self.gemm
        tile = self.tile or staged_tile(gemm.device, pixel_rows(p, pad=True).blocks, gemm.n4) or SMALLEST_STAGED
        out = "f32" if gemm.scales.y is None else "q8to"
        variant = catalog().find("conv2d_q8ta_q8csw__staged", dot=gemm.form, out=out, tile=tile)
        return gemm.device.program(variant, gemm.constants())

    def record(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        gemm, rows = self.gemm, pixel_rows(p, pad=True)
        assert gemm.scales.x is not None
        push = gemm.push(rows, 0, rows.blocks) | window(p)
        push |= {"group_channels": gemm.k // (p.kh * p.kw), "x_zero_point": signed_zero_point(gemm.scales.x), "images": p.n}
        recording.dispatch(self.program(p), [x, gemm.weights, gemm.parameters, y], push, gemm.block_macs(rows.blocks))

    def describe(self, p: Conv2dProblem) -> tuple[tuple[str, ...], int]:
        return (self.program(p).variant.name,), 0


class CoopmatConv(Int8Gemm):
    """A convolution of one group on matrix units. *weight* is (OC, IC, KH, KW); weight zero points are 0.

    *shader* is a variant of conv2d_q8ta_q8csw__coopmat; the weight is packed for its chunk of channels.
    """

    weight_layout = "kPackedInt8_16K"

    def __init__(self, device: Device, weight: Int8, scales: Scales, shader: Variant):
        self.shader = shader
        zeros = np.zeros((1, weight.shape[0]), np.int32)
        ordered = chunked(weight, int(shader.defines["CH"]))
        super().__init__(device, ordered[None], zeros, scales, "s8s8", weight.shape[0])

    @staticmethod
    def refusal(layer: Conv2d, p: Conv2dProblem) -> str | None:
        """Why it cannot take a layer and its problem; None where it can."""
        if layer.scales is None:
            return "its activations are float"
        path = layer.choice().path
        if path != "coopmat":
            return f"its path is {path}; it needs coopmat"
        if p.groups != 1 or p.ic == 0:
            return f"groups={p.groups}, IC={p.ic}; it needs one group with input channels"
        if not _shapes(layer.device):
            return f"the device lists no int8 cooperative matrix of {' or '.join(CONV_SHAPES)}"
        if conv_tile(p) is None:
            return "the input pixels of a tile do not fit into shared memory"
        return None

    @classmethod
    def of(cls, layer: Conv2d) -> CoopmatConv:
        """The kernel of a layer that `refusal` has nothing against."""
        assert layer.scales is not None
        p = layer.reach
        tile = conv_tile(p)
        assert tile is not None
        out = "f32" if layer.scales.y is None else "q8to"
        shader = catalog().find("conv2d_q8ta_q8csw__coopmat", out=out, shape=_shapes(layer.device)[0], tile=tile)
        return cls(layer.device, layer.operands[1], layer.scales, shader)

    def pipeline(self, p: Conv2dProblem) -> Program:
        """The pipeline; it is the same for all sizes of image and batch."""
        h, w = halo(p, self.shader)
        constants: dict[str, Value] = {
            "STRIDE_H": p.stride[0], "STRIDE_W": p.stride[1], "HALO_H": h, "HALO_W": w,
            "SOFT_FLOAT": selftest.report(self.device).soft_float,
        }  # fmt: skip
        return self.device.program(self.shader, constants, SUBGROUP)

    def record(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        rows, defines = pixel_rows(p, pad=True), self.shader.defines
        assert self.scales.x is not None
        push = {**self.push(rows, 0, rows.blocks), **window(p), "kh": p.kh}
        for name in ("m4", "k4", "groups", "first_m4", "stride_h", "stride_w"):
            del push[name]
        push |= {
            "x_zero_point": signed_zero_point(self.scales.x),
            "tiles_h": -(-p.oh // int(defines["TH"])), "tiles_w": -(-p.ow // int(defines["TW"])),
        }  # fmt: skip
        recording.dispatch(self.pipeline(p), [x, self.weights, self.parameters, y], push, self.block_macs(rows.blocks))

    def describe(self, p: Conv2dProblem) -> tuple[tuple[str, ...], int]:
        return (self.pipeline(p).variant.name,), 0


def chunked(weight: Int8, chunk: int) -> Int8:
    """(OC, IC, KH, KW) as (OC, K) with k = (chunk of channels, kh, kw, channel), the channels padded with zeros."""
    oc, ic, kh, kw = weight.shape
    chunks = -(-ic // chunk)
    padded: npt.NDArray[np.int8] = np.zeros((oc, chunks * chunk, kh, kw), np.int8)
    padded[:, :ic] = weight
    return np.ascontiguousarray(padded.reshape(oc, chunks, chunk, kh, kw).transpose(0, 1, 3, 4, 2)).reshape(oc, -1)


def halo(p: Conv2dProblem, shader: Variant) -> tuple[int, int]:
    """The input pixels under a tile of outputs: (lines, columns)."""
    tile_h, tile_w = int(shader.defines["TH"]), int(shader.defines["TW"])
    h = (tile_h - 1) * p.stride[0] + (p.kh - 1) * p.dilation[0] + 1
    return h, (tile_w - 1) * p.stride[1] + (p.kw - 1) * p.dilation[1] + 1


def conv_tile(p: Conv2dProblem) -> str | None:
    """The tile whose input pixels fit, with as few padding channels as can be; the larger chunk where two are equal."""
    fitting = []
    for variant in catalog().shaders["conv2d_q8ta_q8csw__coopmat"].variants:
        d = {name: int(variant.defines[name]) for name in ("CH", "BN", "HALO")}
        h, w = halo(p, variant)
        if h * w * (d["CH"] + 16) <= 16 * d["HALO"]:
            padding = -(-p.ic // d["CH"]) * d["CH"] * -(-p.oc // d["BN"]) * d["BN"]
            fitting.append((padding, -d["BN"], -d["CH"], variant.axes["tile"]))
    return min(fitting)[3] if fitting else None


def _shapes(device: Device) -> list[str]:
    return [shape for shape in CONV_SHAPES if shape in advertised(device.capabilities)]
