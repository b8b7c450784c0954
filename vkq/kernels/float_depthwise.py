"""Depthwise convolutions of float activations with int8 or float weights. An invocation computes
neighbouring pixels of several output rows, which share each loaded input pixel."""

from __future__ import annotations

import numpy as np

from ..device.profiles import profile
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.program import Program
from ..shader.catalog import catalog
from ..shader.spec import TEXEL_BYTES
from .cast import converted, result_dtype
from .floats import PARAMETERS, Affine
from .gemm import viewable
from .weights import Int8, Int32, ceil4

ROWS = 4  # output rows of an invocation, which share the input rows that it loads
MOST_TAPS = 25  # maximum number of taps: the loop over taps is unrolled


class FloatDepthwise:
    """A depthwise convolution (conv_depthwise_floats.comp). *weight* (OC, 1, KH, KW) is int8 or float. An
    int8 weight has *zero_points* (OC,) in int8's range. A float weight is converted to float32, and has no
    zero points."""

    def __init__(self, device: Device, weight: Int8, zero_points: Int32, affine: Affine):
        self.device, self.affine = device, affine
        self.oc, taps = len(weight), weight.size // len(weight)
        self.floats = weight.dtype.kind == "f"
        kind, oc = np.dtype(np.float32 if self.floats else np.int8), self.oc
        of_texel = TEXEL_BYTES // kind.itemsize
        run = -(-taps // of_texel) * of_texel

        def packed() -> Int8:
            padded = np.zeros((oc, run), kind)
            padded[:, :taps] = weight.reshape(oc, taps)
            return padded

        self.weights = Resident(device, oc * run * kind.itemsize, packed)
        size = ceil4(self.oc) * PARAMETERS * 16
        self.parameters = Resident(device, size, lambda: affine.blocks(zero_points[None]))

    @staticmethod
    def fits(device: Device, p: Conv2dProblem) -> bool:
        """Return True if the device's profile prefers this kernel and the kernel supports the convolution:
        few taps, stride 1 or 2, dilation 1."""
        facts = device.capabilities
        small = p.kh * p.kw <= MOST_TAPS and max(p.stride) <= 2 and p.dilation == (1, 1)
        # The larger of the bytes of the parameters and of the weights: the shader reads both as texels.
        most_bytes = p.oc * max(4 * MOST_TAPS + 12, PARAMETERS * 16)
        return profile(facts).lane_loads and small and viewable(facts, most_bytes)

    def writes(self, x: Value) -> str:
        return "float32" if self.floats else result_dtype(self.device, x)

    def program(self, p: Conv2dProblem, dtype: str = "float32") -> Program:
        """Return the pipeline for this problem and images of this dtype. float32 images are read as texels
        (four values) if an image row is a whole number of texels and the image fits into a texel buffer."""
        facts = self.device.capabilities
        whole = p.w % 4 == 0 and viewable(facts, 4 * p.n * p.ic * p.h * p.w)
        variant = catalog().find(
            "conv2d_q8csw__depthwise", x="texels" if whole and dtype == "float32" else dtype
        )
        rows = ROWS // p.stride[0]
        constants = {
            "ROWS": rows, "ASIDE": -p.padding[1] % 4, "STRIDE_H": p.stride[0], "STRIDE_W": p.stride[1],
            "KH": p.kh, "KW": p.kw, "FLOAT_WEIGHTS": self.floats,
        }  # fmt: skip
        return self.device.program(variant, {**constants, **self.affine.constants})

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        dtype = y.spec.dtype
        push = {
            "images": p.n, "c": p.ic, "h": p.h, "w": p.w, "oh": p.oh, "ow": p.ow, "channels": p.oc,
            "group_oc": p.oc // p.groups, "pad_t": p.padding[0], "pad_l": p.padding[1], **self.affine.push,
        }  # fmt: skip
        macs = p.n * p.oc * p.oh * p.ow * p.kh * p.kw
        slots = [converted(b, x, dtype), b.constant(self.weights), b.constant(self.parameters), y]
        b.dispatch(self.program(p, dtype), slots, push, macs)
