"""Sizes of a sliding window over images: what pooling operators check and derive."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from vkq.errors import ArgumentError, DTypeError

Ints = int | Sequence[int]


@dataclass(frozen=True)
class Window:
    """A kernel sliding over images (N, C, H, W) -> (N, C, OH, OW).

    Pairs are (vertical, horizontal), padding is (top, left, bottom, right), the order of ONNX ``pads``. With
    ``ceil_mode`` the last window may reach beyond the padding, but must begin inside the image or the padding
    before it, as in ONNX Runtime and PyTorch. The padding must be smaller than the (dilated) kernel, so that
    every window of dilation 1 sees the image.

    >>> Window.of("max_pool2d", (1, 3, 8, 9), 3, 2, 1, 1, False).y_shape
    (1, 3, 4, 5)
    """

    op: str
    x_shape: tuple[int, int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    ceil_mode: bool

    @classmethod
    def of(
        cls,
        op: str,
        x_shape: Sequence[int],
        kernel: Ints,
        stride: Ints | None,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
    ) -> Window:
        """Arguments as PyTorch: an int or a pair each; padding also (top, left, bottom, right); stride None
        is the kernel."""
        if len(x_shape) != 4:
            raise ArgumentError(
                f"{op}: x has {len(x_shape)} axes (shape {tuple(x_shape)}); it must have 4: (N, C, H, W)"
            )
        n, c, h, w = x_shape
        size = _pair(op, "kernel", kernel, 1)
        steps = size if stride is None else _pair(op, "stride", stride, 1)
        if isinstance(padding, Sequence) and len(padding) == 4:
            pads = tuple(_number(op, "padding", v, 0) for v in padding)
        else:
            pads = 2 * _pair(op, "padding", padding, 0)
        window = cls(
            op,
            (n, c, h, w),
            size,
            steps,
            (pads[0], pads[1], pads[2], pads[3]),
            _pair(op, "dilation", dilation, 1),
            ceil_mode,
        )
        window._check()
        return window

    @property
    def reach(self) -> tuple[int, int]:
        """Height and width of the dilated kernel."""
        return self.dilation[0] * (self.kernel[0] - 1) + 1, self.dilation[1] * (self.kernel[1] - 1) + 1

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        n, c, _, _ = self.x_shape
        return (n, c, self._out(0), self._out(1))

    def _out(self, i: int) -> int:
        size, before, after, step = self.x_shape[2 + i], self.padding[i], self.padding[2 + i], self.stride[i]
        room = size + before + after - self.reach[i]
        if not self.ceil_mode:
            return room // step + 1
        out = -(-room // step) + 1
        return out - 1 if (out - 1) * step >= size + before else out

    def _check(self) -> None:
        for i, axis in enumerate("HW"):
            before, after = self.padding[i], self.padding[2 + i]
            if max(before, after) >= self.reach[i]:
                raise ArgumentError(
                    f"{self.op}: padding along {axis} is ({before}, {after}) and the kernel reaches over"
                    f" {self.reach[i]}; padding must be smaller, or a window would see padding alone"
                )
            if self.x_shape[2 + i] + before + after < self.reach[i]:
                raise ArgumentError(
                    f"{self.op}: the kernel reaches over {self.reach[i]} but {axis} with padding is "
                    f"{self.x_shape[2 + i]} + {before} + {after}; use a smaller kernel, or pad more"
                )


def _pair(op: str, name: str, value: Ints, least: int) -> tuple[int, int]:
    values = value if isinstance(value, Sequence) else (value, value)
    if len(values) != 2:
        raise ArgumentError(f"{op}: {name} is {value!r}; give one number or (vertical, horizontal)")
    return _number(op, name, values[0], least), _number(op, name, values[1], least)


def _number(op: str, name: str, value: int, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise DTypeError(f"{op}: {name} is {value!r}; it must be whole numbers") from None
    if number < least:
        raise ArgumentError(f"{op}: {name} is {number}; it must be at least {least}")
    return number
