"""Sizes of a 2-D convolution: every shape check, the derived sizes, op and byte counts, and a name.

All shape errors are raised in this package. A problem has only sizes; `vkq.numerics.qparams` has scales and
zero points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkq.errors import ArgumentError
from vkq.problem.options import (
    ConvOptions,
    Ints,
    Padding,
    Pair,
    Quad,
    check_groups,
    check_sizes,
    shape_of,
)
from vkq.problem.sizes import ConvSizes


@dataclass(frozen=True)
class Conv2dProblem(ConvSizes):
    """Sizes of a 2-D convolution: x (N, IC, H, W), weight (OC, IC/groups, KH, KW), y (N, OC, OH, OW).

    - stride, dilation: (vertical, horizontal), each 1 or more.
    - padding: (top, left, bottom, right), each 0 or more; the order of ONNX ``pads``.
    - groups: divides IC and OC.

    N, IC, H, W and OC may be 0, but OH and OW must be at least 1, else ArgumentError is raised:
    ``OH = (H + top + bottom - dilation*(KH - 1) - 1) // stride + 1``, and OW likewise. `of` accepts PyTorch's
    arguments, such as an int for a pair.

    >>> p = Conv2dProblem.of((1, 3, 8, 8), (16, 3, 3, 3), stride=2, padding=1)
    >>> p.y_shape, p.gemm_m, p.gemm_k, p.macs
    ((1, 16, 4, 4), 16, 27, 6912)
    >>> p.name
    'conv2d[N=1,IC=3,H=8,W=8,OC=16,KH=3,KW=3,stride=2,padding=1]'
    """

    OP = "conv2d"
    OPTIONS = ("stride", "padding", "dilation")

    n: int
    ic: int
    h: int
    w: int
    oc: int
    kh: int
    kw: int
    stride: Pair = (1, 1)
    padding: Quad = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        sizes = {"N": self.n, "IC": self.ic, "H": self.h, "W": self.w, "OC": self.oc}
        check_sizes("conv2d", sizes, least=0)
        check_sizes("conv2d", {"KH": self.kh, "KW": self.kw, "groups": self.groups}, least=1)
        for option, count, least in (("stride", 2, 1), ("dilation", 2, 1), ("padding", 4, 0)):
            values = tuple(getattr(self, option))
            if len(values) != count:
                raise ArgumentError(f"conv2d: {option} is {values}; it must have {count} numbers.")
            check_sizes("conv2d", {f"{option}[{i}]": value for i, value in enumerate(values)}, least)
            object.__setattr__(self, option, values)
        check_groups("conv2d", self.groups, IC=self.ic, OC=self.oc)
        self._check_output("OH", "H", self.oh, self.h, self.kh, 0)
        self._check_output("OW", "W", self.ow, self.w, self.kw, 1)

    def _check_output(self, out_axis: str, axis: str, out: int, size: int, kernel: int, i: int) -> None:
        if out < 1:
            before, after = self.padding[i], self.padding[i + 2]
            raise ArgumentError(
                f"conv2d: {out_axis} = ({axis} + padding - dilation*(K{axis} - 1) - 1) // stride + 1 ="
                f" ({size} + {before} + {after} - {self.dilation[i]}*({kernel} - 1) - 1) // {self.stride[i]}"
                f" + 1 = {out}; it must be at least 1: pad more, or use a smaller kernel or dilation."
            )

    @classmethod
    def of(
        cls,
        x_shape: Sequence[int],
        weight_shape: Sequence[int],
        stride: Ints = 1,
        padding: Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> Conv2dProblem:
        """Return the problem of x (N, IC, H, W) and weight (OC, IC/groups, KH, KW), with the options of
        `ConvOptions.of`. Raises ArgumentError if shapes and options do not fit."""
        cls._images(x_shape)
        options = ConvOptions.of("conv2d", weight_shape, stride, padding, dilation, groups)
        return cls.with_options(x_shape, weight_shape, options)

    @classmethod
    def with_options(
        cls, x_shape: Sequence[int], weight_shape: Sequence[int], options: ConvOptions
    ) -> Conv2dProblem:
        """Return the problem for one image size and a layer's checked options."""
        x, w, groups = cls._images(x_shape), shape_of(weight_shape), options.groups
        if x[1] != w[1] * groups:
            raise ArgumentError(
                f"conv2d: x has IC={x[1]} (shape {x}) but weight has IC/groups={w[1]} (shape {w}),"
                f" groups={groups}; IC must be {w[1]} * {groups} = {w[1] * groups}."
            )
        stride, padding, dilation = options.stride, options.padding, options.dilation
        return cls(x[0], x[1], x[2], x[3], w[0], w[2], w[3], stride, padding, dilation, groups)

    @classmethod
    def smallest(cls, weight_shape: Sequence[int], options: ConvOptions) -> Conv2dProblem:
        """Return the problem of one image with the fewest output pixels that the padding allows, usually
        one."""
        w = shape_of(weight_shape)
        h, width = (
            max(1, d * (k - 1) + 1 - before - after)
            for d, k, before, after in zip(
                options.dilation, options.kernel, options.padding[:2], options.padding[2:], strict=True
            )
        )
        return cls.with_options((1, w[1] * options.groups, h, width), w, options)

    @property
    def oh(self) -> int:
        """Output height: (H + top + bottom - dilation*(KH - 1) - 1) // stride + 1."""
        reach = self.dilation[0] * (self.kh - 1) + 1
        return (self.h + self.padding[0] + self.padding[2] - reach) // self.stride[0] + 1

    @property
    def ow(self) -> int:
        """Output width: (W + left + right - dilation*(KW - 1) - 1) // stride + 1."""
        reach = self.dilation[1] * (self.kw - 1) + 1
        return (self.w + self.padding[1] + self.padding[3] - reach) // self.stride[1] + 1

    @property
    def weight_shape(self) -> Quad:
        """(OC, IC/groups, KH, KW)"""
        return (self.oc, self.ic // self.groups, self.kh, self.kw)

    @property
    def gemm_m(self) -> int:
        """N*OH*OW: the output pixels."""
        return self.n * self.oh * self.ow

    @property
    def macs(self) -> int:
        """Multiply-accumulates, N*OH*OW*OC*(IC/groups)*KH*KW, padding included (two operations each)."""
        return self.gemm_m * self.gemm_n * self.gemm_k
