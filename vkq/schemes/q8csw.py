"""q8csw: float32 activations, the weight dequantized in the shader, float32 sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..kernels.gemm import FloatGemm, Gemm
from ..kernels.weights import Int8, Int32, by_group
from ..layout.extent import Spec
from ..numerics.requantize import activation_range
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..select.path import Choice
from .base import ChannelScheme, Operands


class Q8csw(ChannelScheme):
    """y = sum_k x (w * w_scale) + bias in float32, in an order that the method decides."""

    name = "q8csw"
    integer = False
    inputs = ("float32",)

    def __init__(self, operands: Operands):
        super().__init__(operands)
        op, bias = operands.op, operands.bias
        if operands.y is not None:
            raise ArgumentError(
                f"{op}: y_qparams is given without x_qparams; an int8 result needs int8 activations"
            )
        if operands.stored_zero_point.any():
            raise ArgumentError(
                f"{op}: w_zero_point must be 0 where the activations are float (scheme q8csw)"
            )
        if bias is not None and bias.dtype != np.float32:
            raise DTypeError(f"{op}: bias has dtype {bias.dtype}; with float activations it must be float32")
        if operands.path not in ("auto", "portable"):
            raise ArgumentError(
                f"{op}: path {operands.path} needs int8 activations (x_qparams); use 'auto' or 'portable'"
            )

    def choice(self, device: Device) -> Choice:
        return Choice("float", "float", "float32 activations: the weight is dequantized in the shader")

    def take(self, b: Builder, x: Value, layout: str) -> tuple[Value, Sequence[Value]]:
        if x.spec.dtype != "float32":
            raise DTypeError(
                f"{self.operands.op}: x has dtype {x.spec.dtype}; without QParams it must be float32"
            )
        return x, ()

    def result(self, shape: Sequence[int], layout: str) -> Spec:
        return Spec(shape, "float32")

    def product(
        self,
        device: Device,
        shape: tuple[int, int, int],
        weight: Callable[[], Int8],
        zero_point: Int32,
        form: str,
        channels: int,
    ) -> Gemm:
        o = self.operands

        def parameters(groups: int, n: int) -> npt.NDArray[np.float32]:
            bias = np.zeros(channels, np.float32) if o.bias is None else o.bias
            return np.stack([by_group(o.w_scale, groups, n), by_group(bias, groups, n)], axis=-1)

        return FloatGemm(device, shape, weight, parameters, activation_range(o.activation), channels)
