"""Sizes with one formula for convolutions and transposed convolutions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import ClassVar

from vkq.errors import ArgumentError
from vkq.problem.options import Pair, Quad, shape_of, shortest


class ConvSizes(ABC):
    """The sizes of a convolution: x (N, IC, H, W), y (N, OC, OH, OW), and a kernel of KH x KW."""

    OP: ClassVar[str]
    OPTIONS: ClassVar[tuple[str, ...]]  # the options' names (pairs and padding), in the order of `name`

    n: int
    ic: int
    h: int
    w: int
    oc: int
    kh: int
    kw: int
    stride: Pair
    padding: Quad
    dilation: Pair
    groups: int

    @property
    @abstractmethod
    def oh(self) -> int:
        """Output height."""

    @property
    @abstractmethod
    def ow(self) -> int:
        """Output width."""

    @property
    @abstractmethod
    def weight_shape(self) -> Quad:
        """The weight's shape."""

    @classmethod
    def _images(cls, x_shape: Sequence[int]) -> tuple[int, ...]:
        x = shape_of(x_shape)
        if len(x) != 4:
            raise ArgumentError(f"{cls.OP}: x has {len(x)} axes (shape {x}); it must have 4: (N, C, H, W).")
        return x

    @property
    def x_shape(self) -> Quad:
        """(N, IC, H, W)"""
        return (self.n, self.ic, self.h, self.w)

    @property
    def y_shape(self) -> Quad:
        """(N, OC, OH, OW)"""
        return (self.n, self.oc, self.oh, self.ow)

    @property
    def gemm_n(self) -> int:
        """OC: the output channels of all groups."""
        return self.oc

    @property
    def gemm_k(self) -> int:
        """IC/groups*KH*KW: the maximum number of terms of one output."""
        return self.ic // self.groups * self.kh * self.kw

    def bytes(self, x_itemsize: int = 1, w_itemsize: int = 1, y_itemsize: int = 1) -> int:
        """Return the bytes of x, weight and y together: the minimum memory traffic of one call. Item sizes
        are in bytes."""
        return (
            prod(self.x_shape) * x_itemsize
            + prod(self.weight_shape) * w_itemsize
            + prod(self.y_shape) * y_itemsize
        )

    @property
    def name(self) -> str:
        """``conv2d[N=1,IC=3,...,stride=2]``: test id, benchmark row and filter, with only the options that
        are not the default.

        A pair of different values is written 2x1. Padding is written 1, 1x2 (vertical, horizontal) or
        0x1x2x3 (ONNX order).
        """
        sizes = (self.n, self.ic, self.h, self.w, self.oc, self.kh, self.kw)
        text = ",".join(f"{key}={size}" for key, size in zip(_SIZES, sizes, strict=True))
        for option in self.OPTIONS:
            values = getattr(self, option)
            if set(values) != {0 if "padding" in option else 1}:
                text += f",{option}={shortest(values)}"
        return f"{self.OP}[{text}{f',groups={self.groups}' if self.groups != 1 else ''}]"


_SIZES = ("N", "IC", "H", "W", "OC", "KH", "KW")
