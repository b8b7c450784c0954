"""Convolutions of float activations with int8 weights. The lanes of a subgroup share the pixels that they
load."""

from __future__ import annotations

import dataclasses

from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.program import Program
from ..shader.catalog import catalog
from .cast import converted, result_dtype
from .direct import UNROLLED_TAPS
from .floats import FloatGemm, lanes
from .pixels import window_constants

CONV_LANES = "conv2d_q8csw__lanes"


class FloatLanes:
    """A direct convolution (conv_lanes.comp). The weight of *gemm* is (G, N, K), with k = (kh, kw, channel).
    The number of input channels of a group is a multiple of 4."""

    def __init__(self, gemm: FloatGemm):
        self.gemm = gemm

    @staticmethod
    def fits(gemm: FloatGemm, p: Conv2dProblem) -> bool:
        """Return True if the lanes of a subgroup can share pixels on this device, and at least two thirds
        of the lanes have channels to compute."""
        if (p.ic // p.groups) % 4 or gemm.groups != p.groups or not gemm.shares_lanes():
            return False
        size = lanes(gemm.device.capabilities)
        return 3 * gemm.n4 >= 2 * size * -(-gemm.n4 // size)

    def writes(self, x: Value) -> str:
        return result_dtype(self.gemm.device, x)

    def program(self, p: Conv2dProblem, dtype: str) -> Program:
        """Return the pipeline for this problem and images of this dtype.

        float32 images are read as texels (four values) if an image row is a whole number of texels, the
        stride and dilation along a row are 1, kernel rows are short enough to be unrolled, and the image
        fits into a texel buffer."""
        known, slides = p.kw <= UNROLLED_TAPS, p.stride[1] == p.dilation[1] == 1
        x_texels = -(-p.n * p.ic * p.h * p.w // 4)
        whole = p.w % 4 == 0 and known and slides and self.gemm.shares_lanes(x_texels)
        variant = catalog().find(CONV_LANES, x="texels" if whole and dtype == "float32" else dtype)
        constants = {"SLIDE": known and slides, "KW": p.kw if known else 0, "ASIDE": -p.padding[1] % 4}
        return self.gemm.lanes_program(variant, **constants)

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        gemm, dtype = self.gemm, y.spec.dtype
        if (p.kh, p.kw, p.stride) == (1, 1, (1, 1)) and not any(p.padding):
            p = dataclasses.replace(p, h=1, w=p.h * p.w)  # the image as one row of pixels
        sizes = {"group_channels": p.ic // p.groups, "oh": p.oh, "ow": p.ow, "kh": p.kh}
        push = gemm.push(p.gemm_m, p.oh * p.ow) | window_constants(p) | sizes
        slots = gemm.slots(b, converted(b, x, dtype), y)
        b.dispatch(self.program(p, dtype), slots, push, gemm.macs(p.gemm_m))
