"""q8ta_q8csw: activations quantized per tensor; results are float32, or 8-bit (q8ta_q8csw_q8to)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..kernels.after import PARTS, TABLES
from ..kernels.quantize import quantized
from ..kernels.repack import repacked
from ..kernels.weights import Int8, Int32, by_group
from ..numerics.qparams import QParams
from ..numerics.requantize import check_accumulator, multipliers, overflowing
from ..numerics.stored import signed_zero_point
from ..runtime.builder import Builder, Value
from .base import Operands
from .int8 import Int8Scheme


class Q8taQ8csw(Int8Scheme):
    """acc = sum_k (x - x_zero_point)(w - w_zero_point) + bias in int32, times the float32 multiplier of its
    output channel."""

    family = "q8ta_q8csw"

    def __init__(self, operands: Operands):
        super().__init__(operands)
        x, bias = operands.x, operands.bias
        assert isinstance(x, QParams)
        self.x = x
        self.inputs = (x.dtype, "float32")
        self.name = self.family + ("" if self.y is None else "_q8to")
        self._whole_bias = bias if bias is not None and bias.dtype == np.int32 else None
        if operands.overflow == "refuse":
            check_accumulator(operands.weight, x, self._whole_bias, operands.w_zero_point)
        # raises an error if a multiplier is outside of float32's range
        self._multipliers = multipliers(x.scale, operands.w_scale, self.y.scale if self.y else None)

    @cached_property
    def overflowing(self) -> list[int]:
        return overflowing(self.operands.weight, self.x, self._whole_bias, self.operands.w_zero_point)

    @property
    def axes(self) -> Mapping[str, str]:  # type: ignore[override]
        return {"out": self.out}

    @property
    def x_zero_point(self) -> int:  # type: ignore[override]
        return signed_zero_point(self.x)

    @property
    def x_scale(self) -> float:  # type: ignore[override]
        return self.x.scale

    def take(self, b: Builder, x: Value, layout: str) -> tuple[Value, Sequence[Value]]:
        op, given = self.operands.op, x.spec
        if given.dtype == "float32":
            return quantized(b, x, self.x, layout), ()
        if given.dtype != self.x.dtype:
            raise DTypeError(
                f"{op}: x has dtype {given.dtype} and x_qparams are for {self.x.dtype}; make them the same"
            )
        if given.qparams is not None and given.qparams != self.x:
            raise ArgumentError(
                f"{op}: x was quantized with {given.qparams} and the layer expects {self.x}; requantize it, "
                "or give the layer before this one the same y_qparams"
            )
        return repacked(b, x, layout), ()

    def channel_parameters(self, blocked: Int8, form: str, zero_point: Int32) -> Int32:
        """Return the parameters as int32 (blocks of 4 channels, 4 parameters, 4 channels).

        - Parameter 0: the offset.
        - Parameter 1: the weight's zero point.
        - Parameter 2: the multiplier.
        - Parameter 3: a float bias. With y_qparams, y's scale for float32 results, and y's zero point for an
          epilogue with tables or parts. Otherwise 0.

        The dot form multiplies x' = x + a and w' = w + b (a, b = 0 or 128). With xz' = xz + a
        and wz' = wz + b,
            sum (x - xz)(w - wz) = sum x'w' - wz' sum x' + (K xz' wz' - xz' sum w')
        The offset is the last parentheses, plus an int32 bias. It is stored modulo 2^32, because the
        accumulator wraps, too.
        """
        groups, n_padded, k_padded = blocked.shape
        n = zero_point.shape[1]
        shift_x, shift_w = (128 if form in ("u8s8", "u8u8") else 0), (128 if form == "u8u8" else 0)
        x_zero = self.x_zero_point + shift_x
        w_zero = np.zeros((groups, n_padded), np.int64)
        w_zero[:, :n] = zero_point
        w_zero += shift_w
        # Sum in int32, modulo 2^32: int64 sums take NumPy twice as long.
        w_sums = blocked.sum(axis=2, dtype=np.int32).astype(np.int64) + shift_w * k_padded
        offset = k_padded * x_zero * w_zero - x_zero * w_sums
        scale, y_zero = self._results(n)
        if self.y is not None:
            # A subnormal multiplier times any int32 accumulator rounds to 0. A device may flush it, so
            # store 0.
            scale = np.where(scale < np.finfo(np.float32).tiny, np.float32(0), scale)
        out = np.zeros((groups, n_padded, 4), np.int32)
        bias = self.operands.bias
        if bias is not None and bias.dtype == np.int32:
            offset[:, :n] += by_group(bias, groups, n).astype(np.int64)
        elif bias is not None:
            out[:, :n, 3] = by_group(bias, groups, n).view(np.int32)
        out[:, :, 0] = offset.astype(np.uint64).astype(np.uint32).view(np.int32)
        if self.y is not None and self.out == "f32":
            out[:, :, 3] = np.float32(self.y.scale).view(np.int32)
        elif self.after.kind & (TABLES | PARTS):
            out[:, :n, 3] = by_group(y_zero, groups, n)
        out[:, :, 1] = w_zero
        out[:, :n, 2] = by_group(scale.astype(np.float32), groups, n).view(np.int32)
        return np.ascontiguousarray(out.reshape(-1, 4, 4).transpose(0, 2, 1))

    def _results(self, channels: int) -> tuple[npt.NDArray[np.float32], Int32]:
        """Return the multiplier and the stored zero point of each output channel."""
        parts = self.after.parts
        if not parts:
            return self._multipliers, np.full(channels, signed_zero_point(self.y), np.int32)
        counts = [count for count, _ in parts]
        scale = np.repeat(np.array([y.scale for _, y in parts], np.float32), counts)
        zero = np.repeat(np.array([signed_zero_point(y) for _, y in parts], np.int32), counts)
        return multipliers(self.x.scale, self.operands.w_scale, scale), zero
