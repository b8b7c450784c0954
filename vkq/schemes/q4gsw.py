"""q4gsw, q8gsw: float activations, weights of 4 or 8 bits with a scale for each group along K, float32
sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ArgumentError, DTypeError
from ..kernels.cast import converted, filled_rows
from ..kernels.grouped import GroupedGemm
from ..kernels.grouped_half import GroupedMatrices
from ..layout.extent import Spec
from ..numerics.grouped import GroupedWeight
from ..numerics.requantize import activation_range
from ..probe.matrices import HALF, advertised_half
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..select.path import Choice, half_refusal
from .base import COMPUTE, Checked, Given, Operands, Product, Scheme, Weight


class Q4gsw(Scheme):
    """y = sum_g scale sum_{k in g} x (q - zero_point) + bias in float32. The kernel decides the order of
    additions."""

    integer = False
    inputs = ("float32", "float16")

    def __init__(self, operands: Operands):
        super().__init__(operands)
        op, bias = operands.op, operands.bias
        self.half = operands.compute != COMPUTE[0]
        self.name = f"q{operands.weight.bits}gsw" + "_f16" * self.half
        self._filled = operands.weight.filled()
        if operands.x is not None or operands.y is not None:
            given = "x_qparams" if operands.x is not None else "y_qparams"
            raise ArgumentError(
                f"{op}: {given} is given with a GroupedWeight, whose activations and results are floats;"
                " leave it out, or give an int8 weight"
            )
        if bias is not None and bias.dtype != np.float32:
            raise DTypeError(f"{op}: bias has dtype {bias.dtype}; with a GroupedWeight it must be float32")
        if operands.path not in ("auto", "portable"):
            raise ArgumentError(
                f"{op}: path {operands.path} needs int8 activations and an int8 weight; use 'auto' or"
                " 'portable'"
            )

    @classmethod
    def check_weight(cls, op: str, rank: int, weight: Weight, scale: Given, zero_point: Given) -> Checked:
        assert isinstance(weight, GroupedWeight)
        if rank != 2:
            raise ArgumentError(
                f"{op}: weight is a {weight}, which only linear layers take; give an int8 weight of {rank}"
                " axes"
            )
        if scale is not None or zero_point is not None:
            given = "w_scale" if scale is not None else "w_zero_point"
            raise ArgumentError(f"{op}: {given} is given, and weight is a {weight}, which has its own")
        return weight, weight.scale, np.zeros(weight.shape[0], np.int32)

    def choice(self, device: Device) -> Choice:
        if self.operands.path == "portable" or half_refusal(device):
            return Choice("float", "float", "float activations: the weight is dequantized in the shader")
        shape = advertised_half(device.capabilities)[0]
        rows = "float16 tensors" + " and many float32 rows (compute='float16')" * self.half
        reason = f"float activations: sums in float32; {rows} on matrices of float16, {shape}"
        return Choice("float", HALF, reason)

    def take(self, b: Builder, x: Value, layout: str) -> tuple[Value, Sequence[Value]]:
        if x.spec.dtype not in self.inputs:
            raise DTypeError(
                f"{self.operands.op}: x has dtype {x.spec.dtype}; with a GroupedWeight it must be float32 or"
                " float16"
            )
        return filled_rows(b, x, self._filled.shape[1]), ()

    def result(self, shape: Sequence[int], layout: str) -> Spec:
        return Spec(shape, "float32")

    def finished(self, b: Builder, x: Value, y: Value) -> Value:
        return converted(b, y, x.spec.dtype)

    def linear(self, device: Device, form: str) -> Product:
        o = self.operands
        gemm = GroupedGemm(device, self._filled, o.bias, activation_range(o.activation))
        if form == HALF:
            gemm.matrices = GroupedMatrices(gemm, self.half)
        return gemm
