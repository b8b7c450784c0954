"""Products and convolutions of float activations in float16 arithmetic (compute="float16"), on devices
without matrix units. Each group of 16 products is added in float16; the sums of the groups are added in
float32 (tiled_halves.glslh)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.profiles import profile
from ..layout.extent import Spec
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value, lets_loop
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.program import Program
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from .floats import Affine, FloatGemm, of_floats
from .gemm import INVOCATIONS
from .gemv import max_rows
from .half_operands import halves
from .weights import ceil4

K_TOGETHER = 16  # number of products that are added in float16
UNIT = 2.0**-5  # factor of int8 weights that keeps float16 sums of 16 products finite for |x| <= 500
LEAST_CHANNELS = 8  # minimum number of channels of a group; with fewer, most products would be padding
MOST_COLUMNS = 8  # maximum number of blocks of channels that one workgroup computes


class Float16Gemm:
    """The product *gemm* in float16 arithmetic, of a linear layer or of a convolution as implicit GEMM.
    *channels*: the number of input channels of a group (k for a linear layer). *floats*: None, or a float
    weight (OC, channels, KH, KW) that replaces the int8 weight."""

    def __init__(self, gemm: FloatGemm, channels: int, floats: npt.NDArray[Any] | None = None):
        self.gemm, self.device, self.channels = gemm, gemm.device, channels
        self.taps = gemm.k // max(channels, 1)
        self.padded = -(-channels // K_TOGETHER) * K_TOGETHER
        # size of the float16 weights in bytes
        self.bytes = 8 * gemm.groups * self.taps * self.padded * gemm.n4
        self.floats: Resident | None = None
        if floats is not None:
            self.floats = Resident(gemm.device, self.bytes, partial(packed, floats, gemm.groups))

    @classmethod
    def of_floats(cls, device: Device, weight: npt.NDArray[Any], affine: Affine, groups: int) -> Float16Gemm:
        """Return the product of a float weight (OC, IC/groups, KH, KW), which is converted to float16."""
        return cls(of_floats(device, weight, affine, groups), weight.shape[1], weight)

    def fits(self) -> bool:
        """Return True if the float16 weights fit into a buffer, there are enough channels, and no loop is
        longer than the driver allows."""
        most = int(self.device.capabilities.properties["maxStorageBufferRange"])
        rounds = self.taps * (self.padded // 4 * 6 + 4) + 4
        return self.channels >= LEAST_CHANNELS and self.bytes <= most and lets_loop(self.device, rounds)

    def worth(self, rows: int, n: int, dtype: str) -> bool:
        """Return True if float16 arithmetic is faster than float32 arithmetic for *rows* rows. It gains
        nothing for few rows, where reading the weights takes all the time."""
        return rows > max_rows(self.device.capabilities, int8=False) and self.fits()

    @property
    def words(self) -> bool:
        """True if the kernel reads two float16 values in each 32-bit word."""
        facts = self.device.capabilities
        return profile(facts).float16_words or not facts.features["storageBuffer16BitAccess"]

    def writes(self, x: Value, rows: int = 0) -> str:
        return "float32" if self.words else x.spec.dtype

    def program(self, y: str, *, pixels: bool, padded: bool) -> Program:
        """Return the pipeline for results of dtype y. *pixels*: whether rows are pixels of images.
        *padded*: whether some taps are outside of the images."""
        known, n4 = profile(self.device.capabilities), self.gemm.n4
        rows, columns = (int(size) for size in known.tile_float.split("x"))
        tile_n4 = min(ceil4(columns), n4)
        wide = 1
        while wide < MOST_COLUMNS and wide * tile_n4 < n4:
            wide *= 2
        x = INVOCATIONS // wide if pixels else wide
        x, down = known.local(x, INVOCATIONS, INVOCATIONS)
        constants: dict[str, Constant] = {
            "LOCAL_X": x, "LOCAL_Y": down, "TILE_M": rows, "TILE_N4": tile_n4, "PIXELS": pixels,
            "PADDED": padded, "AT_ONCE": known.float16_k == K_TOGETHER,
        }  # fmt: skip
        variant = catalog().find("gemm_f16__tiled", x="words" if self.words else "halves", y=y)
        return self.device.program(variant, constants | self.gemm.affine.constants)

    def build(self, b: Builder, x: Value, y: Value, rows: int) -> None:
        """Add a product of *rows* rows to a plan."""
        whole = "whole_" * (self.channels == self.padded)
        operand = halves(b, x, 1, 1, self.channels, rows, whole + "rows", K_TOGETHER)
        push: dict[str, int | float] = {
            "lines": 1, "oh": 1, "ow": rows, "plane": 1, "x_plane": rows, "h": 1, "w": rows, "kh": 1, "kw": 1,
            "stride_h": 1, "stride_w": 1, "pad_t": 0, "pad_l": 0, "dilation_h": 1, "dilation_w": 1,
        }  # fmt: skip
        program = self.program(y.spec.dtype, pixels=False, padded=False)
        self._dispatch(b, program, operand, y, push, rows)

    def convolve(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        operand = halves(b, x, p.n, p.groups, self.channels, p.h * p.w, "images", K_TOGETHER)
        push: dict[str, int | float] = {
            "lines": p.n * p.oh, "oh": p.oh, "ow": p.ow, "plane": p.oh * p.ow, "x_plane": p.h * p.w, "h": p.h,
            "w": p.w, "kh": p.kh, "kw": p.kw, "stride_h": p.stride[0], "stride_w": p.stride[1],
            "pad_t": p.padding[0], "pad_l": p.padding[1], "dilation_h": p.dilation[0],
            "dilation_w": p.dilation[1],
        }  # fmt: skip
        program = self.program(y.spec.dtype, pixels=True, padded=any(p.padding))
        self._dispatch(b, program, operand, y, push, p.gemm_m)

    def _dispatch(
        self, b: Builder, program: Program, x: Value, y: Value, push: dict[str, int | float], rows: int
    ) -> None:
        gemm = self.gemm
        more: dict[str, int | float] = {
            "n4": gemm.n4, "k4": self.padded // 4, "groups": gemm.groups, "channels": gemm.channels,
            "unit": 1 if self.floats else 1 / UNIT, **gemm.affine.push,
        }  # fmt: skip
        slots = [x, self._weights(b), b.constant(gemm.parameters), y]
        b.dispatch(program, slots, push | more, gemm.macs(rows))

    def _weights(self, b: Builder) -> Value:
        """Return the weights as float16. Int8 weights are converted into scratch memory, so that device
        memory keeps one byte for each weight."""
        if self.floats:
            return b.constant(self.floats)
        gemm = self.gemm
        sizes: dict[str, int | float] = {
            "groups": gemm.groups, "taps": self.taps, "group_channels": self.channels, "padded": self.padded,
            "n4": gemm.n4,
        }  # fmt: skip
        y = b.new(Spec((self.bytes // 4,), "int32"))
        slots = [b.constant(gemm.weights), b.constant(gemm.parameters), y]
        b.dispatch(self.device.program(catalog().find("halves_weights__rows")), slots, sizes)
        return y


class Float16Convolution:
    """A convolution in float16 arithmetic, as a `Kernel`."""

    def __init__(self, product: Float16Gemm):
        self.product = product

    def writes(self, x: Value) -> str:
        return self.product.writes(x)

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        self.product.convolve(b, p, x, y)


def packed(weight: npt.NDArray[Any], groups: int) -> npt.NDArray[np.float16]:
    """Pack a float weight (OC, channels, KH, KW) as float16 in the order of tiled_halves.glslh."""
    oc, channels = weight.shape[:2]
    w = weight.astype(np.float16).reshape(groups, oc // groups, channels, -1).transpose(0, 3, 2, 1)
    more = ((0, 0), (0, 0), (0, -channels % K_TOGETHER), (0, -(oc // groups) % 4))
    return np.ascontiguousarray(np.pad(w, more))
