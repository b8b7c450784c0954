"""Convolutions as implicit GEMMs: the input is gathered while tiles are loaded, and no im2col matrix is made.

`Implicit` runs on every device (all dot forms) and has images in kPackedInt8_4W4C, `CoopmatConv` on matrix
units and has them in kPackedInt8_16C. Both have the numbers of `vkq.kernels.gemm.Int8Gemm`: the same offsets,
multipliers and bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..numerics.stored import signed_zero_point
from ..probe.matrices import Matrices, advertised
from ..problem.conv2d import Conv2dProblem
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..shader.catalog import catalog
from ..shader.spec import Value, Variant
from .gemm import SMALLEST_STAGED, Int8Gemm, staged_tile
from .im2col import matrix_refusal, pixel_rows
from .matrix_units import MatrixWeights, centred

if TYPE_CHECKING:
    from ..ops.conv2d import Conv2d

CONV = "conv2d_q8ta_q8csw__coopmat"


def window(p: Conv2dProblem) -> dict[str, int | float]:
    """The push constants that say how the filter moves over the input."""
    return {
        "c": p.ic, "h": p.h, "w": p.w, "kw": p.kw, "stride_h": p.stride[0], "stride_w": p.stride[1],
        "pad_t": p.padding[0], "pad_l": p.padding[1], "dilation_h": p.dilation[0],
        "dilation_w": p.dilation[1],
    }  # fmt: skip


class Implicit:
    """A convolution through shared memory. *gemm* has the weight as (G, N, K) with k = (kh, kw, ic), ic a
    multiple of four."""

    def __init__(self, gemm: Int8Gemm, tile: str | None = None):
        self.gemm = gemm
        self.tile = tile

    @staticmethod
    def refusal(layer: Conv2d, p: Conv2dProblem) -> str | None:
        """Why it cannot take a layer and its problem; None where it can."""
        if layer.scales is None:
            return "its activations are float"
        channels = layer.int8_gemm.k // max(p.kh * p.kw, 1)
        return (
            f"groups of {channels} input channels are not whole words of 4"
            if channels % 4 or not channels
            else None
        )

    @staticmethod
    def fits(device: Device, p: Conv2dProblem) -> bool:
        """Whether the convolution fills tiles through shared memory."""
        return (
            staged_tile(device.capabilities, pixel_rows(p, pad=True).blocks, p.oc // p.groups // 4)
            is not None
        )

    def program(self, p: Conv2dProblem) -> Program:
        """The pipeline for this problem."""
        gemm = self.gemm
        tile = (
            self.tile
            or staged_tile(gemm.device.capabilities, pixel_rows(p, pad=True).blocks, gemm.n4)
            or SMALLEST_STAGED
        )
        out = "f32" if gemm.scales.y is None else "q8to"
        variant = catalog().find("conv2d_q8ta_q8csw__staged", dot=gemm.form, out=out, tile=tile)
        return gemm.device.program(variant, gemm.constants())

    def record(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        gemm, rows = self.gemm, pixel_rows(p, pad=True)
        assert gemm.scales.x is not None
        push = gemm.push(rows, 0, rows.blocks) | window(p)
        push |= {
            "group_channels": gemm.k // (p.kh * p.kw),
            "x_zero_point": signed_zero_point(gemm.scales.x),
            "images": p.n,
        }
        recording.dispatch(
            self.program(p), [x, gemm.weights, gemm.parameters, y], push, gemm.block_macs(rows.blocks)
        )

    def describe(self, p: Conv2dProblem) -> tuple[tuple[str, ...], int]:
        return (self.program(p).variant.name,), 0


class CoopmatConv:
    """A convolution on matrix units. *p* is one of the problems whose weight is packed alike: see
    `packing`."""

    def __init__(self, layer: Conv2d, p: Conv2dProblem):
        assert layer.scales is not None
        self.device = layer.device
        shader, matrices = _shader(layer, p)
        weight = chunked(centred(layer.operands[1], layer.scales), int(shader.defines["CH"]), turn(shader))
        grouped = weight.reshape(p.groups, p.oc // p.groups, weight.shape[1])
        self.packed = MatrixWeights(layer.device, grouped, layer.scales, matrices.form, p.oc)
        self._programs: dict[Conv2dProblem, Program] = {}

    @staticmethod
    def refusal(layer: Conv2d, p: Conv2dProblem) -> str | None:
        """Why it cannot take a layer and its problem; None where it can."""
        if reason := matrix_refusal(layer, p):
            return reason
        fits = conv_shader(p, "q8to", layer.device.capabilities) is not None
        return None if fits else "the input pixels of a tile do not fit into shared memory"

    @staticmethod
    def packing(layer: Conv2d, p: Conv2dProblem) -> Hashable:
        """What the weights depend on: the channels of a chunk, to what its k is padded, and the form of the
        product."""
        shader, matrices = _shader(layer, p)
        return shader.defines["CH"], turn(shader), matrices.form

    def pipeline(self, p: Conv2dProblem) -> Program:
        """The pipeline; it is the same for all images and batches that take the same tile."""
        found = self._programs.get(p)
        if found is None:
            chosen = conv_shader(p, self.packed.out, self.device.capabilities)
            assert chosen is not None
            shader, matrices = chosen
            found = self._programs[p] = self.packed.program(shader, matrices, **_constants(p, shader))
        return found

    def push(self, p: Conv2dProblem, shader: Variant) -> dict[str, int | float]:
        """The push constants."""
        defines, w = {name: int(shader.defines[name]) for name in ("TH", "TW", "CH", "BK")}, self.packed
        assert w.scales.x is not None
        channels = p.ic // p.groups
        return {
            **w.push, "rows": p.gemm_m, "pixels": p.oh * p.ow, "oh": p.oh, "ow": p.ow,
            "k16": -(-channels // 16), "steps": w.k_padded // -(-channels // defines["CH"]) // defines["BK"],
            "taps": p.kh * p.kw, "x_rows": p.n * p.h * p.w, "h": p.h, "w": p.w,
            "x_zero_point": signed_zero_point(w.scales.x), "pad_t": p.padding[0], "pad_l": p.padding[1],
            "dilation_h": p.dilation[0], "dilation_w": p.dilation[1], "tiles_h": -(-p.oh // defines["TH"]),
            "tiles_w": -(-p.ow // defines["TW"]),
        }  # fmt: skip

    def record(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        program, w = self.pipeline(p), self.packed
        recording.dispatch(
            program, [x, w.weights, w.parameters, y], self.push(p, program.variant), w.macs(p.gemm_m)
        )

    def describe(self, p: Conv2dProblem) -> tuple[tuple[str, ...], int]:
        return (self.pipeline(p).variant.name,), 0


def chunked(weight: npt.NDArray[Any], chunk: int, multiple: int) -> npt.NDArray[Any]:
    """(OC, IC, KH, KW) as (OC, K) with k = (chunk of channels, kh, kw, channel).

    The channels are padded with zeros to whole chunks, and so is the k of each chunk to a multiple of
    *multiple*.
    """
    oc, ic, kh, kw = weight.shape
    chunks, k = -(-ic // chunk), kh * kw * chunk
    channels = np.pad(weight, ((0, 0), (0, chunks * chunk - ic), (0, 0), (0, 0)))
    ordered = channels.reshape(oc, chunks, chunk, kh, kw).transpose(0, 1, 3, 4, 2).reshape(oc, chunks, k)
    padded = np.pad(ordered, ((0, 0), (0, 0), (0, -k % multiple)))
    return padded.reshape(oc, chunks * padded.shape[2])


def turn(shader: Variant) -> int:
    """The k of an unrolled turn of the shader's loop; the k of a chunk is padded to whole turns."""
    return int(shader.defines["BK"]) * int(shader.defines["TURNS"])


def halo(p: Conv2dProblem, shader: Variant) -> tuple[int, int]:
    """The input pixels under a tile of outputs: (lines, columns)."""
    tile_h, tile_w = int(shader.defines["TH"]), int(shader.defines["TW"])
    h = (tile_h - 1) * p.stride[0] + (p.kh - 1) * p.dilation[0] + 1
    return h, (tile_w - 1) * p.stride[1] + (p.kw - 1) * p.dilation[1] + 1


# What `conv_shader` weighs tiles by, measured on an H200 (benchmarks/matrix-log.md): 32 k of a workgroup take
# as long as the square root of its tile's area, reading a chunk's pixels as long as a few times that, and
# where there are fewer workgroups than a device holds at once, the rest of it is idle.
CHUNK_STEPS = 6
WORKGROUPS_AT_ONCE = 256


def conv_shader(p: Conv2dProblem, out: str, capabilities: Capabilities) -> tuple[Variant, Matrices] | None:
    """The variant and matrices that should be the fastest, padding included, of those that the device has and
    whose tile's input pixels fit.

    Where several are alike: more pixels (which share the weights), the larger chunk of channels, the
    preferred matrices.
    """
    listed = advertised(capabilities)
    found: list[tuple[tuple[float, ...], tuple[Variant, Matrices]]] = []
    for variant, matrices in itertools.product(catalog().shaders[CONV].variants, listed):
        if (variant.axes["out"], variant.axes["dot"]) != (out, matrices.form) or not _whole(
            variant, matrices
        ):
            continue
        th, tw, bn, ch = (int(variant.defines[name]) for name in ("TH", "TW", "BN", "CH"))
        chunks, k = -(-p.ic // (p.groups * ch)), p.kh * p.kw * ch
        steps = chunks * (-(-k // turn(variant)) * turn(variant) / 32 + CHUNK_STEPS)
        workgroups = (
            p.n
            * p.groups
            * math.prod(-(-a // b) for a, b in ((p.oh, th), (p.ow, tw), (p.oc // p.groups, bn)))
        )
        cost = max(workgroups, WORKGROUPS_AT_ONCE) * steps * math.sqrt(th * tw * bn)
        found.append(((cost, -th * tw, -ch, listed.index(matrices)), (variant, matrices)))
    best_first = (pair for _, pair in sorted(found, key=lambda one: one[0]))
    return next(
        (pair for pair in best_first if pair[1].runs(pair[0], capabilities, **_constants(p, pair[0]))), None
    )


def _whole(variant: Variant, matrices: Matrices) -> bool:
    """Whether a tile is whole matrices, and so is each of its lines."""
    th, tw = int(variant.defines["TH"]), int(variant.defines["TW"])
    return tw % matrices.n == 0 and matrices.fit(variant, th * tw)


def _constants(p: Conv2dProblem, shader: Variant) -> dict[str, Value]:
    """The specialization constants that a problem has in a tile."""
    h, w = halo(p, shader)
    return {"STRIDE_H": p.stride[0], "STRIDE_W": p.stride[1], "HALO_H": h, "HALO_W": w, "KW": p.kw}


def _shader(layer: Conv2d, p: Conv2dProblem) -> tuple[Variant, Matrices]:
    """The variant and matrices for a problem that `CoopmatConv.refusal` has nothing against."""
    shader = conv_shader(p, "f32" if layer.y_qparams is None else "q8to", layer.device.capabilities)
    assert shader is not None
    return shader
