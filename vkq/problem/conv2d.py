"""Sizes of a linear layer and of a convolution: every shape check, the derived sizes, op and byte counts, and
a name.

This is the only place that refuses shapes. A problem knows sizes alone; scales and zero points are in
`vkq.numerics.qparams`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.errors import AccumulatorOverflowError, ArgumentError, DTypeError
from vkq.numerics.qparams import QParams

Pair = tuple[int, int]
Quad = tuple[int, int, int, int]
Padding = int | Sequence[int] | str


@dataclass(frozen=True)
class LinearProblem:
    """Sizes of ``y = x @ weight.T``: x (*lead, K), weight (N, K), y (*lead, N), with M the product of
    ``lead``.

    m: rows (batch x tokens), n: output features, k: reduction length; each 0 or more. K = 0 leaves the bias
    alone.
    lead: the leading dims of x and y; (m,) if not given, and () for a single vector x of shape (K,).
    Raises ArgumentError for a negative size, or a ``lead`` whose product is not m.

    >>> p = LinearProblem.of((2, 5, 64), (32, 64))
    >>> p.m, p.y_shape, p.name
    (10, (2, 5, 32), 'linear[M=10,K=64,N=32]')
    """

    m: int
    n: int
    k: int
    lead: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        lead = (self.m,) if self.lead is None else tuple(self.lead)
        _check_sizes("linear", {"M": self.m, "N": self.n, "K": self.k}, least=0)
        _check_sizes("linear", {f"leading dim {axis}": size for axis, size in enumerate(lead)}, least=0)
        if prod(lead) != self.m:
            raise ArgumentError(
                f"linear: the leading dims are {lead} but M={self.m}; M must be their product."
            )
        object.__setattr__(self, "lead", lead)

    @classmethod
    def of(cls, x_shape: Sequence[int], weight_shape: Sequence[int]) -> LinearProblem:
        """The problem of x of shape (..., K) and weight of shape (N, K); raises ArgumentError if they do not
        fit."""
        x, w = _shape(x_shape), _shape(weight_shape)
        if len(w) != 2:
            raise ArgumentError(f"linear: weight has {len(w)} axes (shape {w}); it must have 2: (N, K).")
        if not x:
            raise ArgumentError("linear: x has no axes (shape ()); its last axis must be K.")
        if x[-1] != w[1]:
            raise ArgumentError(
                f"linear: x has K={x[-1]} (shape {x}) but weight has K={w[1]} (shape {w}); their last axes"
                " must be equal."
            )
        return cls(prod(x[:-1]), w[0], w[1], x[:-1])

    @property
    def x_shape(self) -> tuple[int, ...]:
        """(*lead, K)"""
        return (*(self.lead or ()), self.k)

    @property
    def weight_shape(self) -> Pair:
        """(N, K)"""
        return (self.n, self.k)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """(*lead, N)"""
        return (*(self.lead or ()), self.n)

    @property
    def gemm_m(self) -> int:
        """M, the rows of the matrix product."""
        return self.m

    @property
    def gemm_n(self) -> int:
        """N, the columns of the matrix product."""
        return self.n

    @property
    def gemm_k(self) -> int:
        """K, the reduction length."""
        return self.k

    @property
    def macs(self) -> int:
        """Multiply-accumulates: M*N*K (two operations each)."""
        return self.m * self.n * self.k

    def bytes(self, x_itemsize: int = 1, w_itemsize: int = 1, y_itemsize: int = 1) -> int:
        """Bytes of x, weight and y together: the least traffic of one call. Item sizes are in bytes."""
        return self.m * self.k * x_itemsize + self.n * self.k * w_itemsize + self.m * self.n * y_itemsize

    @property
    def name(self) -> str:
        """``linear[M=1,K=64,N=32]``: test id, benchmark row and filter. It states the product, not the
        leading dims."""
        return f"linear[M={self.m},K={self.k},N={self.n}]"


@dataclass(frozen=True)
class Conv2dProblem:
    """Sizes of a 2-D convolution: x (N, IC, H, W), weight (OC, IC/groups, KH, KW), y (N, OC, OH, OW).

    stride, dilation: (vertical, horizontal), each 1 or more. padding: (top, left, bottom, right), each 0 or
    more; the order of ONNX ``pads``. groups divides IC and OC. N, IC, H, W and OC may be 0; the output may
    not vanish: ``OH = (H + top + bottom - dilation*(KH - 1) - 1) // stride + 1 >= 1``, and OW alike. Else
    ArgumentError. `of` takes the forms that PyTorch takes.

    >>> p = Conv2dProblem.of((1, 3, 8, 8), (16, 3, 3, 3), stride=2, padding=1)
    >>> p.y_shape, p.gemm_m, p.gemm_k, p.macs
    ((1, 16, 4, 4), 16, 27, 6912)
    >>> p.name
    'conv2d[N=1,IC=3,H=8,W=8,OC=16,KH=3,KW=3,stride=2,padding=1]'
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
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        sizes = {"N": self.n, "IC": self.ic, "H": self.h, "W": self.w, "OC": self.oc}
        _check_sizes("conv2d", sizes, least=0)
        _check_sizes("conv2d", {"KH": self.kh, "KW": self.kw, "groups": self.groups}, least=1)
        for option, count, least in (("stride", 2, 1), ("dilation", 2, 1), ("padding", 4, 0)):
            values = tuple(getattr(self, option))
            if len(values) != count:
                raise ArgumentError(f"conv2d: {option} is {values}; it must have {count} numbers.")
            _check_sizes("conv2d", {f"{option}[{i}]": value for i, value in enumerate(values)}, least)
            object.__setattr__(self, option, values)
        for axis, channels in (("IC", self.ic), ("OC", self.oc)):
            if channels % self.groups:
                raise ArgumentError(
                    f"conv2d: {axis}={channels}, groups={self.groups}; groups must divide {axis}."
                )
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
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Conv2dProblem:
        """The problem of x of shape (N, IC, H, W) and weight of shape (OC, IC/groups, KH, KW).

        stride, dilation: an int, or (vertical, horizontal).
        padding: an int, (vertical, horizontal), (top, left, bottom, right), "valid" (none), or "same" (OH = H
        and OW = W, stride 1 only; where the sum is odd the extra pixel goes to the bottom and right, as
        PyTorch and ONNX SAME_UPPER do). Raises ArgumentError if anything does not fit.
        """
        x, w = _shape(x_shape), _shape(weight_shape)
        if len(x) != 4:
            raise ArgumentError(f"conv2d: x has {len(x)} axes (shape {x}); it must have 4: (N, C, H, W).")
        if len(w) != 4:
            raise ArgumentError(
                f"conv2d: weight has {len(w)} axes (shape {w}); it must have 4: (OC, IC/groups, KH, KW)."
            )
        groups = _integer("conv2d", "groups", groups, least=1)
        if x[1] != w[1] * groups:
            raise ArgumentError(
                f"conv2d: x has IC={x[1]} (shape {x}) but weight has IC/groups={w[1]} (shape {w}),"
                f" groups={groups}; IC must be {w[1]} * {groups} = {w[1] * groups}."
            )
        strides, dilations = _pair("stride", stride), _pair("dilation", dilation)
        pads = _padding(padding, (w[2], w[3]), strides, dilations)
        return cls(x[0], x[1], x[2], x[3], w[0], w[2], w[3], strides, pads, dilations, groups)

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
    def x_shape(self) -> Quad:
        """(N, IC, H, W)"""
        return (self.n, self.ic, self.h, self.w)

    @property
    def weight_shape(self) -> Quad:
        """(OC, IC/groups, KH, KW)"""
        return (self.oc, self.ic // self.groups, self.kh, self.kw)

    @property
    def y_shape(self) -> Quad:
        """(N, OC, OH, OW)"""
        return (self.n, self.oc, self.oh, self.ow)

    @property
    def gemm_m(self) -> int:
        """N*OH*OW: the output pixels."""
        return self.n * self.oh * self.ow

    @property
    def gemm_n(self) -> int:
        """OC: the output channels of all groups."""
        return self.oc

    @property
    def gemm_k(self) -> int:
        """IC/groups*KH*KW: the reduction length of one output."""
        return self.ic // self.groups * self.kh * self.kw

    @property
    def macs(self) -> int:
        """Multiply-accumulates, N*OH*OW*OC*(IC/groups)*KH*KW, those on padding included (two operations
        each)."""
        return self.gemm_m * self.gemm_n * self.gemm_k

    def bytes(self, x_itemsize: int = 1, w_itemsize: int = 1, y_itemsize: int = 1) -> int:
        """Bytes of x, weight and y together: the least traffic of one call. Item sizes are in bytes."""
        return (
            prod(self.x_shape) * x_itemsize
            + prod(self.weight_shape) * w_itemsize
            + prod(self.y_shape) * y_itemsize
        )

    @property
    def name(self) -> str:
        """``conv2d[N=1,IC=3,...,stride=2]``: test id, benchmark row and filter; only options that are not the
        default.

        A pair of unequal numbers is written 2x1; padding as 1, 1x2 (vertical, horizontal) or 0x1x2x3 (ONNX
        order).
        """
        sizes = zip(_CONV_SIZES, (self.n, self.ic, self.h, self.w, self.oc, self.kh, self.kw), strict=True)
        text = ",".join(f"{key}={size}" for key, size in sizes)
        options = (("stride", self.stride, 1), ("padding", self.padding, 0), ("dilation", self.dilation, 1))
        for option, values, default in options:
            if set(values) != {default}:
                text += f",{option}={_shortest(values)}"
        return f"conv2d[{text}{f',groups={self.groups}' if self.groups != 1 else ''}]"


Problem = LinearProblem | Conv2dProblem

_LINEAR_SIZES = ("M", "K", "N")
_CONV_SIZES = ("N", "IC", "H", "W", "OC", "KH", "KW")


def parse(name: str) -> Problem:
    """The problem that a name states; the inverse of ``.name``. Options of a conv2d may stand in any order.

    >>> parse("linear[M=1,K=64,N=32]")
    LinearProblem(m=1, n=32, k=64, lead=(1,))
    >>> parse("conv2d[N=1,IC=3,H=8,W=9,OC=4,KH=3,KW=3,stride=2x1,padding=1]").y_shape
    (1, 4, 4, 9)
    """
    match = re.fullmatch(r"(linear|conv2d)\[(\w+=\d+(?:x\d+)*(?:,\w+=\d+(?:x\d+)*)*)\]", name)
    if match is None:
        raise ArgumentError(f"{name!r} is not a problem; write linear[M=1,K=64,N=32] or {_CONV_EXAMPLE}.")
    pairs = [item.split("=") for item in match[2].split(",")]
    values = {key: tuple(int(number) for number in text.split("x")) for key, text in pairs}
    needed = _LINEAR_SIZES if match[1] == "linear" else _CONV_SIZES
    optional = () if match[1] == "linear" else ("stride", "padding", "dilation", "groups")
    missing, unknown = (
        [key for key in needed if key not in values],
        sorted(set(values) - {*needed, *optional}),
    )
    plural = [key for key in (*needed, "groups") if len(values.get(key, (0,))) != 1]
    if len(values) != len(pairs) or missing or unknown or plural:
        raise ArgumentError(
            f"{name!r}: missing {missing}, unknown {unknown}, not a single number {plural}, "
            f"written twice {len(pairs) - len(values)}; {match[1]} takes {', '.join((*needed, *optional))}."
        )
    sizes = [values[key][0] for key in needed]
    if match[1] == "linear":
        return LinearProblem(m=sizes[0], k=sizes[1], n=sizes[2])
    n, ic, h, w, oc, kh, kw = sizes
    stride, dilation = (_pair(key, _unwrap(values.get(key, (1,)))) for key in ("stride", "dilation"))
    padding = _padding(_unwrap(values.get("padding", (0,))), (kh, kw), stride, dilation)
    return Conv2dProblem(n, ic, h, w, oc, kh, kw, stride, padding, dilation, values.get("groups", (1,))[0])


_CONV_EXAMPLE = "conv2d[N=1,IC=3,H=8,W=8,OC=8,KH=3,KW=3,stride=2,padding=1]"


def check_accumulator(
    weight: npt.NDArray[Any],
    x: QParams,
    bias: npt.NDArray[Any] | None = None,
    w_zero_point: npt.ArrayLike | None = None,
) -> None:
    """Refuse weights with which the int32 accumulator of a linear layer or a convolution could overflow.

    weight: int8 or uint8, output channels first. x: parameters of the activation. bias: int32 of shape
    (channels,).
    w_zero_point: one integer or one per channel; None is 0. Raises AccumulatorOverflowError, naming the worst
    channel, where ``max(|qmin - x.zero_point|, |qmax - x.zero_point|) * sum_k |w[n,k] - w_zero_point[n]| +
    |bias[n]| >= 2**31``.

    >>> check_accumulator(np.full((2, 1000), 127, np.int8), QParams(1.0))
    """
    reach = max(abs(x.qmin - x.zero_point), abs(x.qmax - x.zero_point))
    flat = weight.reshape(weight.shape[0], prod(weight.shape[1:])).astype(np.int64)
    if w_zero_point is not None:
        flat -= np.asarray(w_zero_point, np.int64).reshape(-1, 1)
    bounds = reach * np.abs(flat).sum(axis=1)
    if bias is not None:
        bounds = bounds + np.abs(bias.astype(np.int64))
    if bounds.size and bounds.max() >= 2**31:
        channel = int(bounds.argmax())
        raise AccumulatorOverflowError(
            f"output channel {channel}: the accumulator may reach {int(bounds[channel])} "
            f"({reach} * sum|w - w_zero_point| + |bias|), and int32 holds less than 2**31 = {2**31}; "
            f"use smaller weights or bias, or split the reduction (its length is {flat.shape[1]})."
        )


def _integer(op: str, what: str, value: Any, least: int) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise DTypeError(f"{op}: {what} is {value!r}; it must be an integer.")
    try:
        number = operator.index(value)
    except TypeError:
        raise DTypeError(
            f"{op}: {what} is {value!r} ({type(value).__name__}); it must be an integer."
        ) from None
    if number < least:
        raise ArgumentError(f"{op}: {what} is {number}; it must be at least {least}.")
    return number


def _check_sizes(op: str, sizes: dict[str, int], least: int) -> None:
    for what, value in sizes.items():
        _integer(op, what, value, least)


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(operator.index(size) for size in shape)


def _pair(what: str, value: int | Sequence[int]) -> Pair:
    values = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(values) != 2:
        raise ArgumentError(f"conv2d: {what} is {value!r}; give an int or (vertical, horizontal).")
    return _integer("conv2d", what, values[0], 1), _integer("conv2d", what, values[1], 1)


def _padding(padding: Padding, kernel: Pair, stride: Pair, dilation: Pair) -> Quad:
    """Padding in any form that PyTorch or ONNX takes, as (top, left, bottom, right)."""
    if padding == "valid":
        return (0, 0, 0, 0)
    if padding == "same":
        if stride != (1, 1):
            raise ArgumentError(
                f'conv2d: padding="same" with stride {stride}; "same" needs stride 1: give numbers.'
            )
        height, width = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        return (height // 2, width // 2, height - height // 2, width - width // 2)
    values = tuple(padding) if isinstance(padding, Sequence) and not isinstance(padding, str) else (padding,)
    if len(values) not in (1, 2, 4) or isinstance(padding, str):
        raise ArgumentError(
            f"conv2d: padding is {padding!r}; give an int, (vertical, horizontal), (top, left, bottom,"
            ' right), "same" or "valid".'
        )
    numbers = [_integer("conv2d", "padding", value, 0) for value in values] * (4 // len(values))
    return (numbers[0], numbers[1], numbers[2], numbers[3])


def _shortest(values: tuple[int, ...]) -> str:
    """Numbers as a name writes them: repetition left out, so that `_padding` and `_pair` give them back."""
    for count in (1, 2):
        if values[:count] * (len(values) // count) == values:
            return "x".join(map(str, values[:count]))
    return "x".join(map(str, values))


def _unwrap(values: tuple[int, ...]) -> Any:
    return values[0] if len(values) == 1 else values
