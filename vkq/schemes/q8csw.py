"""q8csw: float activations, int8 weights that the shader converts to float, and float32 sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ..errors import ArgumentError, DTypeError
from ..kernels.cast import converted
from ..kernels.float16 import Float16Gemm
from ..kernels.float_direct import FloatDirect
from ..kernels.floats import Affine, FloatGemm
from ..kernels.half import HalfMatrices
from ..kernels.half_configs import PARTS_OF_FLOAT32
from ..kernels.quantize import quantized
from ..kernels.weights import GemmWeight, Int8, Int32
from ..layout.extent import Spec
from ..numerics.requantize import activation_range
from ..probe.float16 import FLOAT16
from ..probe.matrices import BRAIN, HALF, advertised_half
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..select.path import Choice, half_choice, half_refusal
from .base import COMPUTE, ChannelScheme, Operands


class Q8csw(ChannelScheme):
    """y = (sum_k x (w - w_zero_point)) * w_scale + bias in float32, quantized with y_qparams if given. The
    kernel decides the order of additions."""

    integer = False
    inputs = ("float32", "float16")

    def __init__(self, operands: Operands):
        super().__init__(operands)
        op, bias = operands.op, operands.bias
        half, quantizes = operands.compute != COMPUTE[0], operands.y is not None
        self.name = "q8csw" + "_f16" * half + "_q8to" * quantizes
        if bias is not None and bias.dtype != np.float32:
            raise DTypeError(f"{op}: bias has dtype {bias.dtype}; with float activations it must be float32")
        if operands.path not in ("auto", "portable"):
            raise ArgumentError(
                f"{op}: path {operands.path} needs int8 activations (x_qparams); use 'auto' or 'portable'"
            )

    def choice(self, device: Device) -> Choice:
        if self.operands.compute == COMPUTE[0]:
            return self._float32(device)
        return half_choice(device)

    def _float32(self, device: Device) -> Choice:
        """Return the path for compute="float32": bfloat16 matrix units, with x split into three parts, if
        the device has them; else float32 arithmetic."""
        if self.operands.path == "portable" or half_refusal(device, BRAIN):
            return Choice("float", "float", "float activations: products and sums in float32")
        shape = advertised_half(device.capabilities, BRAIN)[0]
        reason = (
            f"float activations: products in float32, or in three parts on matrices {shape}, sums in float32"
        )
        return Choice("float", BRAIN, reason)

    def take(self, b: Builder, x: Value, layout: str) -> tuple[Value, Sequence[Value]]:
        if x.spec.dtype not in self.inputs:
            raise DTypeError(
                f"{self.operands.op}: x has dtype {x.spec.dtype}; without QParams it must be float32 or"
                " float16"
            )
        return x, ()

    def result(self, shape: Sequence[int], layout: str) -> Spec:
        return Spec(shape, "float32")

    def finished(self, b: Builder, x: Value, y: Value) -> Value:
        """Return the result: quantized if y_qparams are given, else in the dtype of x."""
        return converted(b, y, x.spec.dtype) if self.operands.y is None else quantized(b, y, self.operands.y)

    @cached_property
    def affine(self) -> Affine:
        """The epilogue of the sums: scale, bias and activation."""
        o = self.operands
        bias = np.zeros(len(o.w_scale), np.float32) if o.bias is None else o.bias
        return Affine(o.w_scale, bias, activation_range(o.activation))

    def product(self, device: Device, weight: GemmWeight, form: str) -> FloatGemm:
        shape = weight.shape
        gemm = FloatGemm(device, shape, weight.make, weight.zero_point, self.affine, weight.channels)
        if form == HALF:
            gemm.matrices = HalfMatrices(gemm, shape[2])
        if form == FLOAT16:
            gemm.matrices = Float16Gemm(gemm, shape[2])
        if form == BRAIN:
            gemm.matrices = HalfMatrices(gemm, shape[2], elements=PARTS_OF_FLOAT32)
        return gemm

    def direct(self, device: Device, weight: Int8, zero_point: Int32, form: str, groups: int) -> FloatDirect:
        return FloatDirect(device, weight, zero_point, self.affine, groups)
