"""The options of sliding windows: integers, pairs and padding in the forms of PyTorch and ONNX. This module
parses and checks them for convolutions, transposed convolutions and pooling."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkq.errors import ArgumentError, DTypeError

Pair = tuple[int, int]
Quad = tuple[int, int, int, int]
Ints = int | Sequence[int]
Padding = int | Sequence[int] | str


@dataclass(frozen=True)
class ConvOptions:
    """The options of a kernel (KH, KW) that slides over an image. They depend on the weight's shape, not
    the image's.

    - stride, dilation: (vertical, horizontal), each 1 or more.
    - padding: (top, left, bottom, right), each 0 or more.
    - groups: 1 or more.

    `of` accepts PyTorch's arguments, such as an int for a pair.

    >>> ConvOptions.of("conv2d", (8, 4, 3, 4), padding="same", groups=2)
    ConvOptions(stride=(1, 1), padding=(1, 1, 1, 2), dilation=(1, 1), groups=2, kernel=(3, 4))
    """

    stride: Pair
    padding: Quad
    dilation: Pair
    groups: int
    kernel: Pair

    @classmethod
    def of(
        cls,
        op: str,
        weight_shape: Sequence[int],
        stride: Ints = 1,
        padding: Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> ConvOptions:
        """Return the options of a convolution with a weight of shape (OC, IC/groups, KH, KW). Every error
        text begins with *op*.

        - stride, dilation: an int, or (vertical, horizontal).
        - padding: an int, (vertical, horizontal), (top, left, bottom, right), "valid" (no padding), or
          "same" (OH = H and OW = W, for stride 1 only). If "same" needs an odd number of pixels, the extra
          pixel is at the bottom and right, as in PyTorch and ONNX SAME_UPPER.
        - groups: divides OC.

        Raises ArgumentError; DTypeError if a number is not an integer.
        """
        w = shape_of(weight_shape)
        if len(w) != 4:
            raise ArgumentError(
                f"{op}: weight has {len(w)} axes (shape {w}); it must have 4: (OC, IC/groups, KH, KW)."
            )
        groups = checked_int(op, "groups", groups, 1)
        strides, dilations = pair(op, "stride", stride, 1), pair(op, "dilation", dilation, 1)
        kernel = (w[2], w[3])
        pads = conv_padding(op, padding, kernel, strides, dilations)
        check_sizes(op, {"KH": w[2], "KW": w[3]}, least=1)
        check_groups(op, groups, OC=w[0])
        return cls(strides, pads, dilations, groups, kernel)


def checked_int(op: str, what: str, value: Any, least: int) -> int:
    """Return the value as an int. Raises DTypeError if it is not an integer, ArgumentError if it is less than
    *least*. Errors name the operator *op* and the option *what*.

    >>> checked_int("conv2d", "groups", np.int64(3), 1)
    3
    """
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


def check_sizes(op: str, sizes: dict[str, int], least: int) -> None:
    """Raise an error for named sizes that are not integers or are less than *least*."""
    for what, value in sizes.items():
        checked_int(op, what, value, least)


def check_groups(op: str, groups: int, **channels: int) -> None:
    """Raise an error if *groups* does not divide every channel count. *channels*: {name of the axis:
    count}."""
    for axis, count in channels.items():
        if count % groups:
            raise ArgumentError(f"{op}: {axis}={count}, groups={groups}; groups must divide {axis}.")


def shape_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of Python ints."""
    return tuple(operator.index(size) for size in shape)


def pair(op: str, what: str, value: Ints, least: int) -> Pair:
    """Return an int or (vertical, horizontal) as a pair. Parameters and errors: as in `checked_int`.

    >>> pair("conv2d", "stride", 2, 1), pair("conv2d", "stride", [1, 2], 1)
    ((2, 2), (1, 2))
    """
    values = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(values) != 2:
        raise ArgumentError(f"{op}: {what} is {value!r}; give an int or (vertical, horizontal).")
    return checked_int(op, what, values[0], least), checked_int(op, what, values[1], least)


def quad(op: str, padding: Padding, words: str = "") -> Quad:
    """Return padding as (top, left, bottom, right), from an int, (vertical, horizontal) or all four.
    *words*: appended to the error message.

    >>> quad("max_pool2d", (1, 2))
    (1, 2, 1, 2)
    """
    values = tuple(padding) if isinstance(padding, Sequence) and not isinstance(padding, str) else (padding,)
    if len(values) not in (1, 2, 4) or isinstance(padding, str):
        forms = ["an int", "(vertical, horizontal)", "(top, left, bottom, right)"]
        given = ", ".join(forms) + words if words else f"{forms[0]}, {forms[1]} or {forms[2]}"
        raise ArgumentError(f"{op}: padding is {padding!r}; give {given}.")
    numbers = [checked_int(op, "padding", value, 0) for value in values] * (4 // len(values))
    return (numbers[0], numbers[1], numbers[2], numbers[3])


def conv_padding(op: str, padding: Padding, kernel: Pair, stride: Pair, dilation: Pair) -> Quad:
    """Return padding as `quad` does, also for "valid" and "same"."""
    if padding == "valid":
        return (0, 0, 0, 0)
    if padding == "same":
        if stride != (1, 1):
            raise ArgumentError(
                f'{op}: padding="same" with stride {stride}; "same" needs stride 1: give numbers.'
            )
        height, width = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        return (height // 2, width // 2, height - height // 2, width - width // 2)
    return quad(op, padding, ', "same" or "valid"')


def shortest(values: tuple[int, ...]) -> str:
    """Return the values of `pair` or `quad` as written in a problem's name, without repetition.

    >>> shortest((1, 1, 1, 1)), shortest((1, 2, 1, 2)), shortest((2, 1))
    ('1', '1x2', '2x1')
    """
    for count in (1, 2):
        if values[:count] * (len(values) // count) == values:
            return "x".join(map(str, values[:count]))
    return "x".join(map(str, values))
