"""Depthwise convolutions of float activations with int8 or float weights, for images whose rows are whole
vectors of four."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..device.profile_fields import PLENTY
from ..device.profiles import profile
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.plan import Resident
from ..runtime.program import Program
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from .cast import converted
from .float_direct import FloatDirect
from .weights import Int8, Int32

SHADER = "conv2d_q8csw__vectors"
# VECTOR: number of elements of one load or store. PIXELS: number of pixels that an invocation computes.
VECTOR, PIXELS = 4, 8
MOST_WORDS = 96  # maximum number of words that an invocation reads and keeps in registers
# Maximum numbers of invocations of a workgroup: INVOCATIONS in all, LONGEST along an image row.
INVOCATIONS, LONGEST = 128, 32


class FloatVectors:
    """A depthwise convolution (conv_depthwise_floats.comp). *direct* computes the problems that this kernel
    does not support (`takes`)."""

    def __init__(self, direct: FloatDirect, weight: Int8, zero_points: Int32):
        self.direct, self.device = direct, direct.device
        oc, _, kh, kw = weight.shape
        length = -(-(kh * kw + 2) // VECTOR) * VECTOR

        def packed() -> npt.NDArray[np.float32]:
            taps = weight.reshape(oc, -1)
            if weight.dtype.kind != "f":
                taps = taps.astype(np.int32) - zero_points.reshape(-1, 1)
            ends = np.stack((direct.affine.scale, direct.affine.bias), 1)
            found = np.concatenate((taps.astype(np.float32), ends), 1)
            return np.pad(found, ((0, 0), (0, length - found.shape[1])))

        self.weights = Resident(self.device, 4 * oc * length, packed)

    def writes(self, x: Value) -> str:
        return self.direct.writes(x)

    def takes(self, p: Conv2dProblem, dtype: str) -> bool:
        """Return True if this kernel supports the problem: image rows are whole vectors, and the vectors
        that an invocation reads fit into registers."""
        whole = p.w % VECTOR == 0 and p.ow % VECTOR == 0 and min(p.kh, p.kw) > 0
        if not (whole and profile(self.device.capabilities).registers == PLENTY):
            return False
        columns = (PIXELS - 1) * p.stride[1] + (p.kw - 1) * p.dilation[1] + 1
        vectors = -(-(-p.padding[1] % VECTOR + columns) // VECTOR)
        return p.kh * vectors * (VECTOR if dtype == "float32" else VECTOR // 2) <= MOST_WORDS

    def _tiles(self, p: Conv2dProblem) -> tuple[int, int, int, int]:
        """Return the size of a workgroup in invocations (down, across), then the number of workgroups for a
        channel (down, across)."""
        runs = -(-p.ow // PIXELS)
        tiles_w = -(-runs // LONGEST)
        across = -(-runs // tiles_w)
        tiles_h = -(-p.oh // (INVOCATIONS // across))
        return -(-p.oh // tiles_h), across, tiles_h, tiles_w

    def program(self, p: Conv2dProblem, dtype: str = "float32") -> Program:
        """Return the pipeline for this problem and images of this dtype."""
        down, across, _, _ = self._tiles(p)
        constants: dict[str, Constant] = {
            "LOCAL_X": across, "LOCAL_Y": down, "STRIDE_W": p.stride[1], "PAD_L": p.padding[1],
            "DILATION_W": p.dilation[1], "KW": p.kw, "KH": p.kh, "ROUNDED": self.direct.floats,
            **self.direct.affine.constants,
        }  # fmt: skip
        return self.device.program(catalog().find(SHADER, x=dtype), constants)

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        if not self.takes(p, y.spec.dtype):
            return self.direct.build(b, p, x, y)
        _, _, tiles_h, tiles_w = self._tiles(p)
        push: dict[str, int | float] = {
            "oh": p.oh, "ow": p.ow, "c": p.ic, "h": p.h, "w": p.w, "stride_h": p.stride[0],
            "pad_t": p.padding[0], "dilation_h": p.dilation[0], "group_oc": p.oc // p.groups,
            "channels": p.oc, "tiles_h": tiles_h, "tiles_w": tiles_w, "images": p.n,
            **self.direct.affine.push,
        }  # fmt: skip
        slots = [converted(b, x, y.spec.dtype), b.constant(self.weights), y]
        macs = p.n * p.oc * p.oh * p.ow * p.kh * p.kw
        return b.dispatch(self.program(p, y.spec.dtype), slots, push, macs)
