"""What a layer is given, and what every scheme answers."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..kernels.gemm import Gemm
from ..kernels.weights import Int8, Int32
from ..layout.extent import Spec
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..select.path import Choice

XParams = QParams | Literal["dynamic"] | None


@dataclasses.dataclass(frozen=True)
class Operands:
    """What a layer is given, each checked by itself: the weight, its scale and zero point of every output
    channel, a bias (int32 or float32) or None, the parameters of x and y, an activation, and the path asked
    for."""

    op: str
    weight: npt.NDArray[Any]
    w_scale: npt.NDArray[np.float32]
    w_zero_point: Int32
    bias: npt.NDArray[Any] | None
    x: XParams
    y: QParams | None
    activation: Activation
    path: str

    @property
    def stored_weight(self) -> Int8:
        """The weight as int8; uint8 is moved by 128."""
        w = self.weight
        return w if w.dtype == np.int8 else (w ^ np.uint8(0x80)).view(np.int8)

    @property
    def stored_zero_point(self) -> Int32:
        """The zero points, moved alike."""
        return self.w_zero_point - (128 if self.weight.dtype == np.uint8 else 0)


class Scheme(ABC):
    """How the numbers of a layer are computed. Made of `Operands`, which it refuses where they do not go
    together."""

    name: str
    integer: bool  # sums of integers: every path and method has the same bits
    inputs: tuple[str, ...]  # the dtypes that x may have

    def __init__(self, operands: Operands):
        self.operands = operands

    @abstractmethod
    def choice(self, device: Device) -> Choice:
        """The path taken on a device, and why."""

    @abstractmethod
    def take(self, b: Builder, x: Value, layout: str) -> tuple[Value, Sequence[Value]]:
        """(x as the kernels take it, what else they read of it); raises where x does not fit the scheme."""

    @abstractmethod
    def result(self, shape: Sequence[int], layout: str) -> Spec:
        """What comes out, where kernels give 8-bit results in this layout."""

    @abstractmethod
    def product(
        self,
        device: Device,
        shape: tuple[int, int, int],
        weight: Callable[[], Int8],
        zero_point: Int32,
        form: str,
        channels: int,
    ) -> Gemm:
        """The matrix product with a weight (G, N, K) int8 and zero points (G, N), of so many real output
        channels."""
