"""Convolutions on matrix units as implicit GEMMs. Pixels are gathered for one tap at a time, so a tile may
be any sequence of output pixels, for any image size and stride. Images are in kPackedInt8_16C."""

from __future__ import annotations

import numpy as np

from ..device.profiles import Profile
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from .matrix_tiles import TURN, tilings
from .matrix_units import MatrixGemm, Pixels
from .weights import Arithmetic, Int8, Int32

IMPLICIT = "conv2d_q8ta_q8csw__implicit_coopmat"
CHANNELS = 4  # channels in a vector of kPackedInt8_4W4C
STEP = 32  # elements along k; the channels of a tap are padded to a multiple of STEP


class MatrixImplicit:
    """A convolution that gathers pixels for each tap (coopmat_gather.glslh). *weight* is int8 (OC,
    IC/groups, KH, KW), *zero_points* is (OC,)."""

    def __init__(
        self, device: Device, weight: Int8, zero_points: Int32, arithmetic: Arithmetic, groups: int = 1
    ):
        oc, ic, kh, kw = weight.shape
        shape = oc, kh * kw * padded_channels(ic)
        self.gemm = MatrixGemm(device, shape, lambda: by_taps(weight, zero_points), arithmetic, groups)
        self.gemm.whole, self.gemm.split = None, IMPLICIT

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        push = {
            "k16": -(-p.ic // (16 * p.groups)), "h": p.h, "kw": p.kw, "pad_t": p.padding[0],
            "pad_l": p.padding[1], "dilation_h": p.dilation[0], "dilation_w": p.dilation[1],
            "x_zero_point": self.gemm.packed.arithmetic.x_zero_point,
        }  # fmt: skip
        self.gemm.build(b, x, y, Pixels.of(p), push=push)


class MatrixPatches(MatrixImplicit):
    """A convolution of at most `CHANNELS` channels without horizontal padding, whose kernel width and
    horizontal stride are multiples of four pixels, as in the first layer of a vision transformer. The
    shader reads a vector of kPackedInt8_4W4C (four pixels of four channels) as 16 channels of one pixel of
    kPackedInt8_16C. A tap is one such vector, or two neighbouring vectors."""

    def __init__(self, device: Device, weight: Int8, zero_points: Int32, arithmetic: Arithmetic):
        self.vectors = 2 if weight.shape[3] % 8 == 0 else 1  # number of vectors of a tap
        super().__init__(device, by_vectors(weight, zero_points, self.vectors), zero_points, arithmetic)

    @staticmethod
    def refusal(p: Conv2dProblem) -> str | None:
        """Return the reason why the method cannot compute a problem, or None."""
        if p.ic > CHANNELS or p.groups > 1 or p.dilation[1] > 1:
            sizes = f"IC={p.ic}, groups={p.groups}, dilation={p.dilation[1]} along a row"
            return f"{sizes}; it needs one group of at most {CHANNELS} channels, and adjacent taps"
        if p.kw % 4 or p.stride[1] % 4 or p.padding[1] or p.padding[3]:
            sizes = f"KW={p.kw}, stride={p.stride[1]} along a row, padding={p.padding}"
            return f"{sizes}; windows must be whole vectors of four pixels, without padding along a row"
        return None

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        across = -(-p.w // 4)
        pixels = Pixels(
            p.gemm_m, 1, p.oh * p.ow, p.ow, p.h * across, across, (p.stride[0], p.stride[1] // 4)
        )  # fmt: skip
        push = {
            "k16": self.vectors, "h": p.h, "kw": p.kw // (4 * self.vectors), "pad_t": p.padding[0],
            "pad_l": 0, "dilation_h": p.dilation[0], "dilation_w": self.vectors,
            "x_zero_point": self.gemm.packed.arithmetic.x_zero_point,
        }  # fmt: skip
        self.gemm.build(b, x, y, pixels, push=push)


def by_vectors(weight: Int8, zero_points: Int32, vectors: int) -> Int8:
    """Return a weight (OC, IC, KH, KW) as (OC, 16 * vectors, KH, KW / (4 * vectors)): the channels of a tap
    are *vectors* vectors of four pixels x four channels. Padding channels have the zero point of the output
    channel."""
    oc, ic, kh, kw = weight.shape
    pixels = np.empty((oc, kh, kw, CHANNELS), np.int8)
    pixels[:] = zero_points.astype(np.int8).reshape(-1, 1, 1, 1)
    pixels[..., :ic] = weight.transpose(0, 2, 3, 1)
    taps: Int8 = pixels.reshape(oc, kh, -1, 16 * vectors).transpose(0, 3, 1, 2)
    return taps


def implicit_cycles(known: Profile, p: Conv2dProblem) -> float:
    """Return the estimated cycles of a convolution with the best tiling, on the scale of
    `matrix_conv.conv_cycles`."""
    k, n = p.kh * p.kw * padded_channels(p.ic // p.groups), p.oc // p.groups
    sizes = p.gemm_m, n, k + -k % TURN, p.groups
    best = tilings(known, *sizes, gathered=True, wide=False)[0]
    return best.cycles(known, *sizes, gathered=True) + known.matrix_gathered_once


def padded_channels(channels: int) -> int:
    """Return the number of elements along k of one tap: the channels, rounded up to a multiple of STEP."""
    return channels + -channels % STEP


def by_taps(weight: Int8, zero_points: Int32) -> Int8:
    """Return a weight (OC, IC, KH, KW) as (OC, K) with k = (kh, kw, channel). The channels of a tap are
    padded with zero points, which add zero."""
    oc, ic, kh, kw = weight.shape
    out = np.empty((oc, kh, kw, padded_channels(ic)), np.int8)
    out[:] = zero_points.astype(np.int8).reshape(-1, 1, 1, 1)
    out[..., :ic] = weight.transpose(0, 2, 3, 1)
    return out.reshape(oc, -1)
