"""What a layer is given, and what every scheme answers."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..kernels.after import NOTHING, After
from ..kernels.direct import Direct
from ..kernels.float_direct import FloatDirect
from ..kernels.floats import FloatGemm
from ..kernels.gemm import Int8Gemm, Rows
from ..kernels.weights import Int8, Int32
from ..layout.extent import Spec
from ..numerics.grouped import GroupedWeight
from ..numerics.qparams import QParams, check_scales, check_zero_points
from ..numerics.requantize import OVERFLOW, Activation
from ..numerics.stored import owned
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..select.path import Choice

COMPUTE = ("float32", "float16")  # what products of float activations may be made of


def check_compute(who: str, compute: str) -> str:
    """Return *compute*. Raises ArgumentError in the name of *who* where it is none of `COMPUTE`."""
    if compute not in COMPUTE:
        raise ArgumentError(f"{who}: compute is {compute!r}; it must be one of {', '.join(COMPUTE)}")
    return compute


XParams = QParams | Literal["dynamic"] | None


@dataclasses.dataclass(frozen=True)
class Operands:
    """What a layer is given, each checked by itself: the weight, its scale and zero point of every output
    channel (of a `GroupedWeight` its own, and nothing), a bias (int32 or float32) or None, the parameters of
    x and y, an activation, the path asked for, what products may be made of (`COMPUTE`), and what is done
    where accumulators could leave int32 (`OVERFLOW`)."""

    op: str
    weight: Any
    w_scale: npt.NDArray[Any]
    w_zero_point: Int32
    bias: npt.NDArray[Any] | None
    x: XParams
    y: QParams | None
    activation: Activation
    path: str
    compute: str = COMPUTE[0]
    overflow: str = OVERFLOW[0]

    @property
    def stored_weight(self) -> Int8:
        """The weight as int8; uint8 is moved by 128, floats stay."""
        w: npt.NDArray[Any] = self.weight
        return w if w.dtype != np.uint8 else (w ^ np.uint8(0x80)).view(np.int8)

    @property
    def stored_zero_point(self) -> Int32:
        """The zero points, moved alike."""
        return self.w_zero_point - (128 if self.weight.dtype == np.uint8 else 0)


Weight = npt.ArrayLike | GroupedWeight
Checked = tuple[Any, npt.NDArray[Any], Int32]  # a weight, its scales, its zero points: as `Operands`


class Product(Protocol):
    """What multiplies rows with a weight."""

    kernel: str  # "auto", or one by name

    def build(self, b: Builder, x: Value, y: Value, rows: Rows, extra: Sequence[Value] = ()) -> None:
        """Adds it to a plan. extra: what else a scheme says of x (`Scheme.take`)."""


class Scheme(ABC):
    """How the numbers of a layer are computed. Made of `Operands`, which it refuses where they do not go
    together."""

    name: str
    integer: bool  # sums of integers: every path and method has the same bits
    inputs: tuple[str, ...]  # the dtypes that x may have
    after: After = NOTHING  # what is done to 8-bit results

    @property
    def overflowing(self) -> list[int]:
        """The output channels whose int32 accumulators could overflow, and wrap."""
        return []

    def __init__(self, operands: Operands):
        self.operands = operands

    @classmethod
    @abstractmethod
    def check_weight(
        cls,
        op: str,
        rank: int,
        weight: Weight,
        scale: npt.ArrayLike | None,
        zero_point: npt.ArrayLike | None,
    ) -> Checked:
        """A weight of so many axes, as given to a layer; raises where it is none for the scheme."""

    @abstractmethod
    def choice(self, device: Device) -> Choice:
        """The path taken on a device, and why."""

    @abstractmethod
    def take(self, b: Builder, x: Value, layout: str) -> tuple[Value, Sequence[Value]]:
        """(x as the kernels take it, what else they read of it); raises where x does not fit the scheme."""

    @abstractmethod
    def result(self, shape: Sequence[int], layout: str) -> Spec:
        """What a kernel gives, where kernels give 8-bit results in this layout."""

    def finished(self, b: Builder, x: Value, y: Value) -> Value:
        """What comes out, made of the input and of what a kernel gave."""
        return y

    @abstractmethod
    def linear(self, device: Device, form: str) -> Product:
        """The product of a linear layer, in one dot form."""


class ChannelScheme(Scheme):
    """A scheme of 8-bit weights with one scale for each output channel, for every kind of layer."""

    @classmethod
    def check_weight(
        cls,
        op: str,
        rank: int,
        weight: Weight,
        scale: npt.ArrayLike | None,
        zero_point: npt.ArrayLike | None,
    ) -> Checked:
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
        return self.product(
            device, (1, n, k), lambda: o.stored_weight[None], o.stored_zero_point[None], form, n
        )

    @abstractmethod
    def product(
        self,
        device: Device,
        shape: tuple[int, int, int],
        weight: Callable[[], Int8],
        zero_point: Int32,
        form: str,
        channels: int,
    ) -> Int8Gemm | FloatGemm:
        """The matrix product with a weight (G, N, K) int8 and zero points (G, N), of so many real output
        channels."""

    @abstractmethod
    def direct(
        self, device: Device, weight: Int8, zero_point: Int32, form: str, groups: int
    ) -> Direct | FloatDirect:
        """A convolution straight from the image with a weight (OC, IC/groups, KH, KW) int8 and zero points
        (OC,)."""
