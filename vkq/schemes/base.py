"""The operands of a layer, and the interface of every scheme."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..kernels.after import NOTHING, After
from ..kernels.direct import Direct
from ..kernels.float_direct import FloatDirect
from ..kernels.floats import FloatGemm
from ..kernels.gemm import Int8Gemm, Rows
from ..kernels.weights import GemmWeight, Int8, Int32
from ..layout.extent import Spec
from ..numerics.grouped import GroupedWeight
from ..numerics.qparams import QParams, check_scales, check_zero_points
from ..numerics.requantize import OVERFLOW, Activation
from ..numerics.stored import owned
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..select.path import Choice

COMPUTE = ("float32", "float16")  # the arithmetic of products of float activations


def check_compute(who: str, compute: str) -> str:
    """Return *compute*. Raises ArgumentError, with a message that begins with *who*, if it is not in
    `COMPUTE`."""
    if compute not in COMPUTE:
        raise ArgumentError(f"{who}: compute is {compute!r}; it must be one of {', '.join(COMPUTE)}")
    return compute


XParams = QParams | Literal["dynamic"] | None


@dataclasses.dataclass(frozen=True)
class Operands:
    """The operands of a layer; each was checked separately."""

    op: str
    weight: Any
    w_scale: npt.NDArray[Any]  # for each output channel; a `GroupedWeight` has its own for each group
    w_zero_point: Int32  # likewise
    bias: npt.NDArray[Any] | None  # int32 or float32
    x: XParams  # the quantization parameters of x
    y: QParams | None  # the quantization parameters of y
    activation: Activation
    path: str  # the requested path
    compute: str = COMPUTE[0]  # the arithmetic of products
    overflow: str = OVERFLOW[0]  # whether accumulators may exceed int32

    @property
    def stored_weight(self) -> Int8:
        """The weight as int8: uint8 values minus 128. Float weights are unchanged."""
        w: npt.NDArray[Any] = self.weight
        return w if w.dtype != np.uint8 else (w ^ np.uint8(0x80)).view(np.int8)

    @property
    def stored_zero_point(self) -> Int32:
        """The zero points of `stored_weight`: minus 128 if the weight is uint8."""
        return self.w_zero_point - (128 if self.weight.dtype == np.uint8 else 0)


Weight = npt.ArrayLike | GroupedWeight
Given = npt.ArrayLike | None  # scales or zero points as given to a layer
Checked = tuple[Any, npt.NDArray[Any], Int32]  # a weight, its scales and zero points, for `Operands`


class Product(Protocol):
    """The product of rows with a weight, computed by a kernel."""

    kernel: str  # "auto", or the name of the kernel to use

    def build(self, b: Builder, x: Value, y: Value, rows: Rows, extra: Sequence[Value] = ()) -> None:
        """Add the product to a plan. extra: values that the scheme computes from x (`Scheme.take`)."""


class Scheme(ABC):
    """The computation of a layer. The constructor raises an error if its `Operands` do not fit together."""

    name: str
    integer: bool  # True if sums are of integers: all paths and methods give the same bits
    inputs: tuple[str, ...]  # the dtypes that x may have
    after: After = NOTHING  # the epilogue of 8-bit results
    # The reason why the caller cannot choose ``compute``, and the remedy; "" if the caller can. {x!r}:
    # x_qparams.
    one_compute = ""

    @property
    def overflowing(self) -> list[int]:
        """The output channels whose int32 accumulators may overflow and wrap."""
        return []

    def __init__(self, operands: Operands):
        self.operands = operands

    @classmethod
    @abstractmethod
    def check_weight(cls, op: str, rank: int, weight: Weight, scale: Given, zero_point: Given) -> Checked:
        """Return a layer's weight of *rank* axes after a check. Raises an error if the scheme cannot use
        it."""

    @classmethod
    def check_result(cls, op: str, y: QParams | None) -> None:
        """Raise an error if an 8-bit result is requested (y: its parameters) and the scheme has none."""
        return

    @abstractmethod
    def choice(self, device: Device) -> Choice:
        """Return the path on a device, and the reason."""

    @abstractmethod
    def take(self, b: Builder, x: Value, layout: str) -> tuple[Value, Sequence[Value]]:
        """Return x in the layout and dtype that kernels read, and further values that kernels read with x.
        Raises an error if the scheme does not support x."""

    @abstractmethod
    def result(self, shape: Sequence[int], layout: str) -> Spec:
        """Return the spec of a kernel's result. *layout* is used if the result has 8 bits."""

    def finished(self, b: Builder, x: Value, y: Value) -> Value:
        """Return the layer's result for the layer's input x and a kernel's result y."""
        return y

    @abstractmethod
    def linear(self, device: Device, form: str) -> Product:
        """Return the product of a linear layer. *form*: the dot form (`vkq.select.path.TABLE`)."""


class ChannelScheme(Scheme):
    """A scheme of 8-bit weights with one scale for each output channel, for all layers."""

    @classmethod
    def check_weight(cls, op: str, rank: int, weight: Weight, scale: Given, zero_point: Given) -> Checked:
        w = owned(np.asarray(weight))
        if w.dtype not in (np.int8, np.uint8):
            raise DTypeError(
                f"{op}: weight has dtype {w.dtype}; it must be int8 or uint8: weight, w_scale ="
                " vkq.quantize_weight(weight) makes them"
            )
        if w.ndim != rank:
            raise ArgumentError(f"{op}: weight has {w.ndim} axes (shape {w.shape}); it must have {rank}")
        if scale is None:
            raise ArgumentError(f"{op}: w_scale is None; an int8 weight needs one number, or one per channel")
        channels = w.shape[0]
        scales = check_scales(scale, channels, f"{op}: w_scale")
        return w, scales, check_zero_points(zero_point, channels, w.dtype, f"{op}: w_zero_point")

    def linear(self, device: Device, form: str) -> Product:
        o = self.operands
        n, k = o.weight.shape
        weight = GemmWeight((1, n, k), lambda: o.stored_weight[None], o.stored_zero_point[None], n)
        return self.product(device, weight, form)

    @abstractmethod
    def product(self, device: Device, weight: GemmWeight, form: str) -> Int8Gemm | FloatGemm:
        """Return the matrix product with a weight. *form*: the dot form (`vkq.select.path.TABLE`)."""

    @abstractmethod
    def direct(
        self, device: Device, weight: Int8, zero_point: Int32, form: str, groups: int
    ) -> Direct | FloatDirect:
        """Return a direct convolution with an int8 weight (OC, IC/groups, KH, KW) and zero points (OC,)."""
