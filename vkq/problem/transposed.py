"""Sizes of a transposed convolution: every shape check, the derived sizes, op and byte counts, and a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkq.errors import ArgumentError
from vkq.problem.options import (
    Ints,
    Pair,
    Quad,
    check_groups,
    check_sizes,
    checked_int,
    pair,
    quad,
    shape_of,
)
from vkq.problem.sizes import ConvSizes

_OP = "conv_transpose2d"
MOST_PHASES = 1024  # maximum number of phases of a stride; phases are computed one by one


@dataclass(frozen=True)
class TransposedOptions:
    """The options of a transposed convolution with a kernel (KH, KW), independent of the image. The fields
    are those of `TransposedConv2dProblem`.

    >>> TransposedOptions.of((4, 2, 3, 3), stride=2, output_padding=1).padding
    (0, 0, 0, 0)
    """

    stride: Pair
    padding: Quad
    output_padding: Pair
    dilation: Pair
    groups: int
    kernel: Pair

    @classmethod
    def of(
        cls,
        weight_shape: Sequence[int],
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> TransposedOptions:
        """Return the options for a weight of shape (IC, OC/groups, KH, KW).

        - stride, output_padding, dilation: an int, or (vertical, horizontal).
        - padding: an int, (vertical, horizontal), or (top, left, bottom, right).

        Raises ArgumentError, or DTypeError for values that are not integers.
        """
        w = shape_of(weight_shape)
        if len(w) != 4:
            raise ArgumentError(
                f"{_OP}: weight has {len(w)} axes (shape {w}); it must have 4: (IC, OC/groups, KH, KW)."
            )
        groups, pads = checked_int(_OP, "groups", groups, 1), quad(_OP, padding)
        strides, dilations = pair(_OP, "stride", stride, 1), pair(_OP, "dilation", dilation, 1)
        extra = pair(_OP, "output_padding", output_padding, 0)
        if strides[0] * strides[1] > MOST_PHASES:
            raise ArgumentError(
                f"{_OP}: stride is {strides}; the product of the two may be at most {MOST_PHASES}: each phase"
                " of the stride is a convolution of its own."
            )
        check_sizes(_OP, {"KH": w[2], "KW": w[3]}, least=1)
        check_groups(_OP, groups, IC=w[0])
        _check_output_padding(extra, strides, dilations)
        return cls(strides, pads, extra, dilations, groups, (w[2], w[3]))


@dataclass(frozen=True)
class TransposedConv2dProblem(ConvSizes):
    """Sizes of a transposed convolution: x (N, IC, H, W), weight (IC, OC/groups, KH, KW), y (N, OC, OH, OW).

    - stride, dilation: (vertical, horizontal).
    - padding: (top, left, bottom, right), cropped from the output.
    - output_padding: (vertical, horizontal), less than the stride or the dilation (PyTorch's rule).
    - groups: divides IC and OC.

    ``OH = (H - 1)*stride - top - bottom + dilation*(KH - 1) + output_padding + 1 >= 1``, and OW likewise.
    Raises ArgumentError otherwise. `of` accepts PyTorch's arguments, such as an int for a pair.

    >>> p = TransposedConv2dProblem.of((1, 32, 8, 8), (32, 16, 3, 3), stride=2, padding=1, output_padding=1)
    >>> p.y_shape, p.macs
    ((1, 16, 16, 16), 294912)
    >>> p.name
    'conv_transpose2d[N=1,IC=32,H=8,W=8,OC=16,KH=3,KW=3,stride=2,padding=1,output_padding=1]'
    """

    OP = _OP
    OPTIONS = ("stride", "padding", "output_padding", "dilation")

    n: int
    ic: int
    h: int
    w: int
    oc: int
    kh: int
    kw: int
    stride: Pair = (1, 1)
    padding: Quad = (0, 0, 0, 0)
    output_padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        sizes = {"N": self.n, "IC": self.ic, "H": self.h, "W": self.w, "OC": self.oc}
        check_sizes(_OP, sizes, least=0)
        check_sizes(_OP, {"KH": self.kh, "KW": self.kw, "groups": self.groups}, least=1)
        for name, least in (("stride", 1), ("dilation", 1), ("padding", 0), ("output_padding", 0)):
            check_sizes(_OP, {f"{name}[{i}]": value for i, value in enumerate(getattr(self, name))}, least)
        check_groups(_OP, self.groups, IC=self.ic, OC=self.oc)
        _check_output_padding(self.output_padding, self.stride, self.dilation)
        for i, axis in enumerate("HW"):
            self._check_axis(i, axis, (self.h, self.w)[i], (self.kh, self.kw)[i], (self.oh, self.ow)[i])

    def _check_axis(self, i: int, axis: str, size: int, kernel: int, out: int) -> None:
        stride, dilation, extra = self.stride[i], self.dilation[i], self.output_padding[i]
        if out < 1 and size:
            raise ArgumentError(
                f"{_OP}: O{axis} = ({axis} - 1)*stride - padding + dilation*(K{axis} - 1) + output_padding +"
                f" 1 = ({size} - 1)*{stride} - {self.padding[i]} - {self.padding[i + 2]} +"
                f" {dilation}*({kernel} - 1) + {extra} + 1 = {out}; it must be at least 1: pad less."
            )

    @classmethod
    def of(
        cls,
        x_shape: Sequence[int],
        weight_shape: Sequence[int],
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> TransposedConv2dProblem:
        """Return the problem of x of shape (N, IC, H, W) and weight of shape (IC, OC/groups, KH, KW); options
        as in `TransposedOptions.of`. Raises ArgumentError if anything does not fit."""
        cls._images(x_shape)
        options = TransposedOptions.of(weight_shape, stride, padding, output_padding, dilation, groups)
        return cls.with_options(x_shape, weight_shape, options)

    @classmethod
    def with_options(
        cls, x_shape: Sequence[int], weight_shape: Sequence[int], options: TransposedOptions
    ) -> TransposedConv2dProblem:
        """Return the problem for one image size and a layer's checked options."""
        x, w, o = cls._images(x_shape), shape_of(weight_shape), options
        if x[1] != w[0]:
            raise ArgumentError(
                f"{_OP}: x has IC={x[1]} (shape {x}) but weight has IC={w[0]} (shape {w}); they must be"
                " equal."
            )
        sizes = (x[0], x[1], x[2], x[3], w[1] * o.groups, w[2], w[3])
        return cls(*sizes, o.stride, o.padding, o.output_padding, o.dilation, o.groups)

    @property
    def oh(self) -> int:
        """Output height; 0 if the input has no rows."""
        return self._out(0, self.h, self.kh)

    @property
    def ow(self) -> int:
        """Output width; 0 if the input has no columns."""
        return self._out(1, self.w, self.kw)

    def _out(self, i: int, size: int, kernel: int) -> int:
        reach = self.dilation[i] * (kernel - 1) + self.output_padding[i] + 1
        return (size - 1) * self.stride[i] - self.padding[i] - self.padding[i + 2] + reach if size else 0

    @property
    def weight_shape(self) -> Quad:
        """(IC, OC/groups, KH, KW)"""
        return (self.ic, self.oc // self.groups, self.kh, self.kw)

    @property
    def gemm_m(self) -> int:
        """N*H*W, the input pixels. Each is spread over the kernel."""
        return self.n * self.h * self.w

    @property
    def macs(self) -> int:
        """Multiply-accumulates: N*H*W*IC*(OC/groups)*KH*KW, including products for cropped results."""
        return self.gemm_m * self.ic * (self.oc // self.groups) * self.kh * self.kw


def _check_output_padding(output_padding: Pair, stride: Pair, dilation: Pair) -> None:
    for i, extra in enumerate(output_padding):
        if extra >= max(stride[i], dilation[i]):
            raise ArgumentError(
                f"{_OP}: output_padding[{i}] is {extra}; it must be less than the stride ({stride[i]}) or the"
                f" dilation ({dilation[i]})."
            )
