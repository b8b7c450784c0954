"""The base class of schemes with integer activations: int32 sums of products on every path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ..kernels.after import DEQUANTIZED
from ..kernels.direct import Direct
from ..kernels.gemm import Int8Gemm
from ..kernels.weights import GemmWeight, Int8, Int32
from ..layout.extent import Spec
from ..numerics.qparams import QParams
from ..numerics.requantize import activation_bounds, activation_range
from ..numerics.stored import signed_zero_point
from ..runtime.device import Device
from ..select.path import Choice, choose_path
from .base import ChannelScheme


class Int8Scheme(ChannelScheme):
    """A scheme with integer activations: `vkq.kernels.weights.Arithmetic` except for `channel_parameters`."""

    integer = True
    one_compute = (
        "x_qparams {x!r}; products of integers are exact: leave it out, or leave x_qparams out for float"
        " activations"
    )
    family: str
    axes: Mapping[str, str]
    x_zero_point, x_scale = 0, 0.0

    @property
    def y(self) -> QParams | None:
        """The parameters of an 8-bit result; None for a float32 result."""
        return self.operands.y

    @property
    def out(self) -> str:
        """The result's type in the names of variants and problems: ``q8to`` (8-bit results) or ``f32``."""
        return "f32" if self.y is None or self.after.kind == DEQUANTIZED else "q8to"

    @cached_property
    def w_zero_point(self) -> Int32:
        """The stored zero point of each output channel's weights."""
        return self.operands.stored_zero_point

    @cached_property
    def largest_bias(self) -> int:
        """A bound of the magnitude of every int32 bias."""
        bias = self.operands.bias
        whole = bias is not None and bias.dtype == np.int32 and bias.size
        return int(np.abs(bias.astype(np.int64)).max()) if bias is not None and whole else 0

    @cached_property
    def epilogue(self) -> Mapping[str, int | float]:
        """The zero point of y and the bounds of the activation, as push constants for 8-bit and float32
        results."""
        low, high = activation_range(self.operands.activation)
        if self.y is None:
            return {"y_zero_point": 0, "y_min": 0, "y_max": 0, "y_low": low, "y_high": high}
        q_low, q_high = activation_bounds(self.operands.activation, self.y)
        zero = signed_zero_point(self.y)
        moved = self.y.zero_point - zero
        if self.out == "f32":  # the bounds are applied before dequantization
            low, high = -math.inf, math.inf
        return {
            "y_zero_point": zero, "y_min": q_low - moved, "y_max": q_high - moved, "y_low": low,
            "y_high": high,
        }  # fmt: skip

    def choice(self, device: Device) -> Choice:
        return choose_path(device, self.operands.path)

    def result(self, shape: Sequence[int], layout: str) -> Spec:
        if self.y is None or self.out == "f32":
            return Spec(shape, "float32")
        y = self.after.y or self.y
        return Spec(shape, y.dtype, layout, y)

    def product(self, device: Device, weight: GemmWeight, form: str) -> Int8Gemm:
        return Int8Gemm(device, weight.shape, weight.make, weight.zero_point, self, form, weight.channels)

    def direct(self, device: Device, weight: Int8, zero_point: Int32, form: str, groups: int) -> Direct:
        return Direct(device, weight, zero_point, self, form, groups)

    def channel_parameters(self, blocked: Int8, form: str, zero_point: Int32) -> Int32:
        """Return the epilogue's parameters for each block of four channels
        (`vkq.kernels.weights.Arithmetic`)."""
        raise NotImplementedError
