"""f32, f16: float activations, float32 or float16 weights, and float32 sums. Results have the same bits on
every device, except with compute="float16"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..kernels.cast import converted
from ..kernels.float16 import Float16Gemm
from ..kernels.float_direct import FloatDirect
from ..kernels.float_product import FloatProduct, HalfProduct
from ..kernels.floats import Affine, of_floats
from ..kernels.half import HalfMatrices
from ..kernels.weights import GemmWeight, Int8, Int32
from ..layout.extent import Spec
from ..numerics.grouped import GroupedWeight
from ..numerics.requantize import activation_range
from ..numerics.stored import owned
from ..probe.float16 import FLOAT16
from ..probe.matrices import HALF
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..select.path import Choice, half_choice
from .base import COMPUTE, Checked, Given, Operands, Product, Scheme, Weight

FLOATS = ("float32", "float16")


class F32(Scheme):
    """y = sum_k x w + bias in float32. Each product and sum is rounded to nearest even, and each problem
    size has a fixed order of additions along k (`vkq.kernels.float_product`, `vkq.kernels.float_direct`).
    With compute="float16", the weight is float16, for float16 matrix units (`vkq.kernels.half`) or float16
    arithmetic (`vkq.kernels.float16`)."""

    integer = False
    inputs = FLOATS

    def __init__(self, operands: Operands):
        super().__init__(operands)
        op, bias = operands.op, operands.bias
        self.name = "f32" if operands.weight.dtype == np.float32 else "f16"
        self.half = operands.compute != COMPUTE[0]
        self.name += "_f16" * self.half
        if self.half:
            _check_range(op, operands.weight)
        if operands.x is not None or operands.y is not None:
            given = "x_qparams" if operands.x is not None else "y_qparams"
            raise ArgumentError(
                f"{op}: {given} is given with a {operands.weight.dtype} weight, whose activations and results"
                " are floats; leave it out, or give an int8 weight: weight, w_scale ="
                " vkq.quantize_weight(weight)"
            )
        if bias is not None and bias.dtype != np.float32:
            raise DTypeError(f"{op}: bias has dtype {bias.dtype}; with a float weight it must be float32")
        if operands.path not in ("auto", "portable"):
            raise ArgumentError(
                f"{op}: path {operands.path} needs int8 activations and an int8 weight; use 'auto' or"
                " 'portable'"
            )

    @classmethod
    def takes(cls, weight: Weight) -> bool:
        """Return True if this scheme supports the weight's dtype."""
        return not isinstance(weight, GroupedWeight) and np.asarray(weight).dtype.name in FLOATS

    @classmethod
    def check_weight(cls, op: str, rank: int, weight: Weight, scale: Given, zero_point: Given) -> Checked:
        w = owned(np.asarray(weight))
        if w.ndim != rank:
            raise ArgumentError(f"{op}: weight has {w.ndim} axes (shape {w.shape}); it must have {rank}")
        if scale is not None or zero_point is not None:
            given = "w_scale" if scale is not None else "w_zero_point"
            raise ArgumentError(
                f"{op}: {given} is given, and weight is {w.dtype}, which has none; weight, w_scale ="
                " vkq.quantize_weight(weight) makes an int8 one"
            )
        return w, np.ones(w.shape[0], np.float32), np.zeros(w.shape[0], np.int32)

    def choice(self, device: Device) -> Choice:
        if not self.half:
            return Choice("float", "float", "float weights: products and sums in float32, in one order")
        return half_choice(device)

    def take(self, b: Builder, x: Value, layout: str) -> tuple[Value, Sequence[Value]]:
        if x.spec.dtype not in self.inputs:
            raise DTypeError(
                f"{self.operands.op}: x has dtype {x.spec.dtype}; with a float weight it must be float32 or"
                " float16"
            )
        return x if self.half else converted(b, x, "float32"), ()

    def result(self, shape: Sequence[int], layout: str) -> Spec:
        return Spec(shape, "float32")

    def finished(self, b: Builder, x: Value, y: Value) -> Value:
        return converted(b, y, x.spec.dtype)

    @property
    def affine(self) -> Affine:
        """The epilogue of a convolution: scale 1, and the bias."""
        o = self.operands
        return Affine(o.w_scale, self._bias, activation_range(o.activation))

    @property
    def _bias(self) -> npt.NDArray[np.float32]:
        o = self.operands
        return np.zeros(len(o.w_scale), np.float32) if o.bias is None else o.bias

    def linear(self, device: Device, form: str) -> Product:
        o, bounds = self.operands, activation_range(self.operands.activation)
        if form not in (HALF, FLOAT16):
            return FloatProduct(device, o.weight, self._bias, bounds)
        weight = o.weight[:, :, None, None]
        gemm = of_floats(device, weight, self.affine, 1)
        kind = Float16Gemm if form == FLOAT16 else HalfMatrices
        return HalfProduct(device, o.weight, self._bias, bounds, kind(gemm, weight.shape[1], floats=weight))

    def product(self, device: Device, weight: GemmWeight, form: str) -> None:
        """Return None: convolutions of this scheme use no matrix product."""

    def direct(self, device: Device, weight: Int8, zero_point: Int32, form: str, groups: int) -> FloatDirect:
        """Return a direct convolution with a float weight (OC, IC/groups, KH, KW)."""
        return FloatDirect(device, weight, zero_point, self.affine, groups)


def _check_range(op: str, weight: npt.NDArray[Any]) -> None:
    """Raise an error if a weight exceeds the range of float16."""
    with np.errstate(over="ignore"):
        beyond = np.isinf(weight.astype(np.float16)) & np.isfinite(weight)
    if beyond.any():
        raise ArgumentError(
            f"{op}: weight has {weight[beyond][0]!r} and compute is 'float16', in which it would be infinite:"
            " numbers must be below 65520; leave compute out"
        )
