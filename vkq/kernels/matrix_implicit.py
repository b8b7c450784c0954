"""Convolutions on matrix units as implicit GEMMs. Pixels are gathered for one tap at a time, so a tile may be
any run of output pixels, for any image size and stride. Images are in kPackedInt8_16C."""

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
STEP = 32  # elements along k: the channels of a tap are padded to a multiple of it


class MatrixImplicit:
    """A convolution that gathers pixels for each tap; see coopmat_gather.glslh. *weight* is (OC, IC/groups,
    KH, KW), *zero_points* (OC,)."""

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


def implicit_cycles(known: Profile, p: Conv2dProblem) -> float:
    """Return the estimated cycles of a convolution with the best tiling, comparable with
    `matrix_conv.conv_cycles`."""
    k, n = p.kh * p.kw * padded_channels(p.ic // p.groups), p.oc // p.groups
    sizes = p.gemm_m, n, k + -k % TURN, p.groups
    best = tilings(known, *sizes, gathered=True, wide=False)[0]
    return best.cycles(known, *sizes, gathered=True) + known.matrix_gathered_once


def padded_channels(channels: int) -> int:
    """Return the k of one tap: the channels, rounded up to a multiple of STEP."""
    return channels + -channels % STEP


def by_taps(weight: Int8, zero_points: Int32) -> Int8:
    """Return a weight (OC, IC, KH, KW) as (OC, K) with k = (kh, kw, channel). The channels of a tap are
    padded with zero points, whose products are zero."""
    oc, ic, kh, kw = weight.shape
    out = np.empty((oc, kh, kw, padded_channels(ic)), np.int8)
    out[:] = zero_points.astype(np.int8).reshape(-1, 1, 1, 1)
    out[..., :ic] = weight.transpose(0, 2, 3, 1)
    return out.reshape(oc, -1)
