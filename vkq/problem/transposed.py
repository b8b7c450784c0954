"""Sizes of a transposed convolution: every shape check, the derived sizes and counts, and a name, as
`vkq.problem` has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from vkq.errors import ArgumentError
from vkq.problem.conv2d import Pair, Quad

_OP = "conv_transpose2d"


@dataclass(frozen=True)
class TransposedConv2dProblem:
    """Sizes of a transposed convolution: x (N, IC, H, W), weight (IC, OC/groups, KH, KW), y (N, OC, OH, OW).

    stride, dilation, output_padding: (vertical, horizontal). padding: (top, left, bottom, right), what is cut
    off the output. ``OH = (H - 1)*stride - top - bottom + dilation*(KH - 1) + output_padding + 1 >= 1``, and
    OW alike; output_padding is less than the stride or the dilation (PyTorch's rule). groups divides IC and
    OC. Else ArgumentError. `of` takes PyTorch's forms.

    >>> p = TransposedConv2dProblem.of((1, 32, 8, 8), (32, 16, 3, 3), stride=2, padding=1, output_padding=1)
    >>> p.y_shape, p.macs
    ((1, 16, 16, 16), 294912)
    >>> p.name
    'conv_transpose2d[N=1,IC=32,H=8,W=8,OC=16,KH=3,KW=3,stride=2,padding=1,output_padding=1]'
    """

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
        for size, name in zip(
            (self.n, self.ic, self.h, self.w, self.oc), ("N", "IC", "H", "W", "OC"), strict=True
        ):
            _check(name, size, 0)
        for size, name in ((self.kh, "KH"), (self.kw, "KW"), (self.groups, "groups")):
            _check(name, size, 1)
        for name, least in (("stride", 1), ("dilation", 1), ("padding", 0), ("output_padding", 0)):
            for i, value in enumerate(getattr(self, name)):
                _check(f"{name}[{i}]", value, least)
        for axis, channels in (("IC", self.ic), ("OC", self.oc)):
            if channels % self.groups:
                raise ArgumentError(
                    f"{_OP}: {axis}={channels}, groups={self.groups}; groups must divide {axis}."
                )
        for i, axis in enumerate("HW"):
            self._check_axis(i, axis, (self.h, self.w)[i], (self.kh, self.kw)[i], (self.oh, self.ow)[i])

    def _check_axis(self, i: int, axis: str, size: int, kernel: int, out: int) -> None:
        stride, dilation, extra = self.stride[i], self.dilation[i], self.output_padding[i]
        if extra >= max(stride, dilation):
            raise ArgumentError(
                f"{_OP}: output_padding[{i}] is {extra}; it must be less than the stride ({stride}) or the"
                f" dilation ({dilation})."
            )
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
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> TransposedConv2dProblem:
        """The problem of x of shape (N, IC, H, W) and weight of shape (IC, OC/groups, KH, KW).

        stride, output_padding, dilation: an int, or (vertical, horizontal). padding: an int, (vertical,
        horizontal), or (top, left, bottom, right). Raises ArgumentError if anything does not fit.
        """
        x, w = tuple(map(int, x_shape)), tuple(map(int, weight_shape))
        if len(x) != 4:
            raise ArgumentError(f"{_OP}: x has {len(x)} axes (shape {x}); it must have 4: (N, C, H, W).")
        if len(w) != 4:
            raise ArgumentError(
                f"{_OP}: weight has {len(w)} axes (shape {w}); it must have 4: (IC, OC/groups, KH, KW)."
            )
        if x[1] != w[0]:
            raise ArgumentError(
                f"{_OP}: x has IC={x[1]} (shape {x}) but weight has IC={w[0]} (shape {w}); they must be"
                " equal."
            )
        _check("groups", groups, 1)
        pads = _numbers("padding", padding, (1, 2, 4))
        top, left, bottom, right = pads * (4 // len(pads))
        strides, extra, dilations = (
            _pair(name, value)
            for name, value in (
                ("stride", stride),
                ("output_padding", output_padding),
                ("dilation", dilation),
            )
        )
        quad = (top, left, bottom, right)
        return cls(x[0], x[1], x[2], x[3], w[1] * groups, w[2], w[3], strides, quad, extra, dilations, groups)

    @property
    def oh(self) -> int:
        """Output height; 0 where the input has no rows."""
        return self._out(0, self.h, self.kh)

    @property
    def ow(self) -> int:
        """Output width; 0 where the input has no columns."""
        return self._out(1, self.w, self.kw)

    def _out(self, i: int, size: int, kernel: int) -> int:
        reach = self.dilation[i] * (kernel - 1) + self.output_padding[i] + 1
        return (size - 1) * self.stride[i] - self.padding[i] - self.padding[i + 2] + reach if size else 0

    @property
    def x_shape(self) -> Quad:
        """(N, IC, H, W)"""
        return (self.n, self.ic, self.h, self.w)

    @property
    def weight_shape(self) -> Quad:
        """(IC, OC/groups, KH, KW)"""
        return (self.ic, self.oc // self.groups, self.kh, self.kw)

    @property
    def y_shape(self) -> Quad:
        """(N, OC, OH, OW)"""
        return (self.n, self.oc, self.oh, self.ow)

    @property
    def gemm_m(self) -> int:
        """N*H*W: the input pixels, each of which is spread over the kernel."""
        return self.n * self.h * self.w

    @property
    def gemm_n(self) -> int:
        """OC: the output channels of all groups."""
        return self.oc

    @property
    def gemm_k(self) -> int:
        """IC/groups*KH*KW: the most that one output sums."""
        return self.ic // self.groups * self.kh * self.kw

    @property
    def macs(self) -> int:
        """Multiply-accumulates: N*H*W*IC*(OC/groups)*KH*KW, those cut off at the border included."""
        return self.gemm_m * self.ic * (self.oc // self.groups) * self.kh * self.kw

    def bytes(self, x_itemsize: int = 1, w_itemsize: int = 1, y_itemsize: int = 1) -> int:
        """Bytes of x, weight and y together: the least traffic of one call. Item sizes are in bytes."""
        return (
            prod(self.x_shape) * x_itemsize
            + prod(self.weight_shape) * w_itemsize
            + prod(self.y_shape) * y_itemsize
        )

    @property
    def name(self) -> str:
        """``conv_transpose2d[N=1,IC=32,...]``: as `vkq.problem.Conv2dProblem.name`."""
        sizes = (self.n, self.ic, self.h, self.w, self.oc, self.kh, self.kw)
        text = ",".join(f"{key}={size}" for key, size in zip(_SIZES, sizes, strict=True))
        for option in ("stride", "padding", "output_padding", "dilation"):
            values = getattr(self, option)
            if set(values) != {0 if "padding" in option else 1}:
                text += f",{option}={_shortest(values)}"
        return f"{_OP}[{text}{f',groups={self.groups}' if self.groups != 1 else ''}]"


_SIZES = ("N", "IC", "H", "W", "OC", "KH", "KW")


def parse_transposed(name: str) -> TransposedConv2dProblem:
    """The problem that a name states; the inverse of ``.name``.

    >>> parse_transposed("conv_transpose2d[N=1,IC=4,H=5,W=6,OC=2,KH=3,KW=3,stride=2]").y_shape
    (1, 2, 11, 13)
    """
    match = re.fullmatch(rf"{_OP}\[(\w+=\d+(?:x\d+)*(?:,\w+=\d+(?:x\d+)*)*)\]", name)
    pairs = [item.split("=") for item in match[1].split(",")] if match else []
    values = {key: tuple(int(number) for number in text.split("x")) for key, text in pairs}
    options = ("stride", "padding", "output_padding", "dilation", "groups")
    if match is None or not set(_SIZES) <= set(values) <= {*_SIZES, *options} or len(values) != len(pairs):
        raise ArgumentError(
            f"{name!r} is not a transposed convolution; write {_OP}[{'=1,'.join(_SIZES)}=1,stride=2,...]."
        )
    n, ic, h, w, oc, kh, kw = (values[key][0] for key in _SIZES)
    groups = values.pop("groups", (1,))[0]
    given = {key: values[key] for key in options if key in values}
    return TransposedConv2dProblem.of(
        (n, ic, h, w), (ic, oc // groups, kh, kw), groups=groups, **{k: _unwrap(v) for k, v in given.items()}
    )


def _check(what: str, value: int, least: int) -> None:
    if isinstance(value, bool) or value != int(value) or value < least:
        raise ArgumentError(f"{_OP}: {what} is {value!r}; it must be an integer of at least {least}.")


def _numbers(what: str, value: int | Sequence[int], lengths: tuple[int, ...]) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if len(values) not in lengths or not all(isinstance(v, int) for v in values):
        raise ArgumentError(
            f"{_OP}: {what} is {value!r}; give integers, {' or '.join(map(str, lengths))} of them."
        )
    return tuple(int(v) for v in values if isinstance(v, int))


def _pair(what: str, value: int | Sequence[int]) -> Pair:
    values = _numbers(what, value, (1, 2))
    return values[0], values[-1]


def _shortest(values: tuple[int, ...]) -> str:
    for count in (1, 2):
        if values[:count] * (len(values) // count) == values:
            return "x".join(map(str, values[:count]))
    return "x".join(map(str, values))


def _unwrap(values: tuple[int, ...]) -> int | tuple[int, ...]:
    return values[0] if len(values) == 1 else values
