"""dq8ca_q8csw: float32 activations, quantized on the device with a scale and zero point from each row's
values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ..errors import ArgumentError, DTypeError
from ..kernels.dynamic import quantize_rows
from ..kernels.weights import Int8, Int32, by_group
from ..numerics.qparams import QParams
from ..numerics.requantize import WORST_CASE, check_accumulator, overflowing
from ..runtime.builder import Builder, Value
from .base import Operands
from .int8 import Int8Scheme


class Dq8caQ8csw(Int8Scheme):
    """The formula of q8ta_q8csw, with separate parameters for each row of x. The result is float32."""

    name = family = "dq8ca_q8csw"
    inputs = ("float32",)
    axes: Mapping[str, str] = {}  # the kernels have only float32 results

    def __init__(self, operands: Operands):
        super().__init__(operands)
        op, bias = operands.op, operands.bias
        if bias is not None and bias.dtype != np.float32:
            raise DTypeError(
                f"{op}: bias has dtype {bias.dtype}; with x_qparams='dynamic' it must be float32"
            )
        if operands.overflow == "refuse":
            check_accumulator(operands.weight, WORST_CASE, None, operands.w_zero_point)

    @cached_property
    def overflowing(self) -> list[int]:
        return overflowing(self.operands.weight, WORST_CASE, None, self.operands.w_zero_point)

    @classmethod
    def check_result(cls, op: str, y: QParams | None) -> None:
        if y is not None:
            raise ArgumentError(f"{op}: y_qparams is given with x_qparams='dynamic'; its result is float32")

    def take(self, b: Builder, x: Value, layout: str) -> tuple[Value, Sequence[Value]]:
        if x.spec.dtype != "float32":
            raise DTypeError(
                f"{self.operands.op}: x has dtype {x.spec.dtype}; without QParams it must be float32"
            )
        m, k = math.prod(x.spec.shape[:-1]), x.spec.shape[-1]
        packed, parameters = quantize_rows(b, x, m, k, layout)
        return packed, (parameters,)

    def channel_parameters(self, blocked: Int8, form: str, zero_point: Int32) -> Int32:
        """Return int32 [block of four channels][step, weight zero point, weight scale, bias][4 channels].

        The step is the change of an accumulator when a row's zero point grows by one: K wz' - sum w', where
        w' and wz' are the weight and its zero point in the dot form.
        """
        groups, n_padded, k_padded = blocked.shape
        n = zero_point.shape[1]
        shift_w = 128 if form == "u8u8" else 0
        out = np.zeros((groups, n_padded, 4), np.int64)
        out[:, :n, 1] = zero_point
        out[:, :, 1] += shift_w
        out[:, :, 0] = k_padded * out[:, :, 1] - blocked.sum(axis=2, dtype=np.int64) - shift_w * k_padded
        out[:, :n, 2] = by_group(self.operands.w_scale, groups, n).view(np.int32)
        if self.operands.bias is not None:
            out[:, :n, 3] = by_group(self.operands.bias, groups, n).view(np.int32)
        return np.ascontiguousarray(out.astype(np.int32).reshape(-1, 4, 4).transpose(0, 2, 1))
