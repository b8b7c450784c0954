"""Convolutions of float activations with float weights. The lanes of a subgroup share the pixels that they
load."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value, lets_loop
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.program import Program
from ..shader.catalog import catalog
from ..shader.spec import TEXEL_BYTES
from .cast import converted
from .direct import UNROLLED_TAPS
from .floats import PARAMETERS, Affine, lanes
from .gemm import viewable
from .pixels import window_constants
from .weights import ceil4

LANES_F32 = "conv2d_f32__lanes"
MOST_READS = 4  # maximum number of values or texels of an image row that a lane loads in advance


class FloatShared:
    """A direct convolution (conv_lanes.comp) with the summation order of `FloatDirect`. *weight* is float
    (OC, IC/groups, KH, KW)."""

    def __init__(self, device: Device, weight: npt.NDArray[Any], affine: Affine, groups: int):
        self.device, self.affine, self.groups = device, affine, groups
        self.oc, self.ic, self.kh, self.kw = weight.shape
        self.n4 = ceil4(self.oc // groups)
        n4 = self.n4

        def packed() -> npt.NDArray[np.float32]:
            of_group = weight.astype(np.float32).reshape(groups, -1, *weight.shape[1:])
            padded = np.pad(of_group, ((0, 0), (0, 4 * n4 - of_group.shape[1]), (0, 0), (0, 0), (0, 0)))
            return np.ascontiguousarray(padded.transpose(0, 2, 3, 4, 1))

        self.weights = Resident(device, _bytes(weight.shape, groups), packed)
        zeros = np.zeros((groups, self.oc // groups), np.int32)
        self.parameters = Resident(device, groups * n4 * PARAMETERS * 16, lambda: affine.blocks(zeros))

    @staticmethod
    def fits(device: Device, p: Conv2dProblem) -> bool:
        """Return True if the kernel supports this problem: subgroups have a known size, more than one lane
        has channels to compute, and the filter is narrow."""
        size, n4 = lanes(device.capabilities), ceil4(p.oc // p.groups)
        whole_blocks = p.groups == 1 or p.oc // p.groups % 4 == 0
        if not (size and whole_blocks and 0 < p.kw <= UNROLLED_TAPS):
            return False
        shape = (p.oc, p.ic // p.groups, p.kh, p.kw)
        sizes = _bytes(shape, p.groups), p.groups * n4 * PARAMETERS * 16
        loops = lets_loop(device, shape[1] * p.kh * (p.kw + 2))
        return n4 > 1 and loops and _columns(p) <= MOST_READS * size and viewable(device.capabilities, *sizes)

    def writes(self, x: Value) -> str:
        return "float32"

    def program(self, p: Conv2dProblem) -> Program:
        """Return the pipeline for this problem. Images are read as texels (four values) if an image row is
        a whole number of texels."""
        facts = self.device.capabilities
        size = lanes(facts)
        whole = p.w % 4 == 0 and viewable(facts, TEXEL_BYTES * -(-p.n * p.ic * p.h * p.w // 4))
        variant = catalog().find(LANES_F32, x="texels" if whole else "numbers")
        constants = {
            "LANES": size, "ASIDE": -p.padding[1] % 4 if whole else 0, "STRIDE_W": p.stride[1],
            "DILATION_W": p.dilation[1], "KW": p.kw, **self.affine.constants,
        }  # fmt: skip
        return self.device.program(variant, constants, size)

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        if (p.kh, p.kw, p.stride) == (1, 1, (1, 1)) and not any(p.padding):
            p = dataclasses.replace(p, h=1, w=p.h * p.w)  # the image as one row of pixels
        push: dict[str, int | float] = {
            "m": p.gemm_m, "n4": self.n4, "k": self.ic * self.kh * self.kw, "groups": self.groups,
            "channels": self.oc, "plane": p.oh * p.ow, **self.affine.push,
        }  # fmt: skip
        push |= window_constants(p) | {"group_channels": self.ic, "oh": p.oh, "ow": p.ow, "kh": p.kh}
        slots = [converted(b, x, "float32"), b.constant(self.weights), b.constant(self.parameters), y]
        b.dispatch(self.program(p), slots, push, p.gemm_m * 4 * self.n4 * self.groups * int(push["k"]))


def _columns(p: Conv2dProblem) -> int:
    """Return the number of input columns that eight neighbouring output pixels read, plus 3: in texels, the
    first texel may begin up to 3 columns earlier."""
    return 3 + 7 * p.stride[1] + (p.kw - 1) * p.dilation[1] + 1


def _bytes(shape: tuple[int, ...], groups: int) -> int:
    oc, ic, kh, kw = shape
    return 16 * ceil4(oc // groups) * groups * ic * kh * kw
