"""Sizes of a sliding window over images: the checks and derived sizes of pooling operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkq.errors import ArgumentError
from vkq.problem.options import Ints, Pair, Quad, pair, quad


@dataclass(frozen=True)
class Window:
    """A kernel that slides over images (N, C, H, W), with a result (N, C, OH, OW).

    - kernel, stride, dilation: (vertical, horizontal).
    - padding: (top, left, bottom, right), the order of ONNX ``pads``. It must be smaller than the (dilated)
      kernel, so that every window of dilation 1 contains a pixel of the image.
    - ceil_mode: the last window may extend beyond the padding. It must begin inside the image or in the
      padding at the top or left, as in ONNX Runtime and PyTorch.

    >>> Window.of("max_pool2d", (1, 3, 8, 9), 3, 2, 1, 1, False).y_shape
    (1, 3, 4, 5)
    """

    op: str
    x_shape: Quad
    kernel: Pair
    stride: Pair
    padding: Quad
    dilation: Pair
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
        """Return the window for PyTorch's arguments, each an int or a pair. padding may also be (top, left,
        bottom, right). If stride is None, it is the kernel size."""
        if len(x_shape) != 4:
            raise ArgumentError(
                f"{op}: x has {len(x_shape)} axes (shape {tuple(x_shape)}); it must have 4: (N, C, H, W)"
            )
        n, c, h, w = x_shape
        size = pair(op, "kernel", kernel, 1)
        steps = size if stride is None else pair(op, "stride", stride, 1)
        pads, spread = quad(op, padding), pair(op, "dilation", dilation, 1)
        window = cls(op, (n, c, h, w), size, steps, pads, spread, ceil_mode)
        window._check()
        return window

    @property
    def reach(self) -> Pair:
        """Height and width of the dilated kernel."""
        return self.dilation[0] * (self.kernel[0] - 1) + 1, self.dilation[1] * (self.kernel[1] - 1) + 1

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def whole(self) -> bool:
        """True if the kernel has the size of the image: ONNX Runtime's 8-bit average then uses the formula
        of `global_avg_pool2d`."""
        return self.kernel == self.x_shape[2:] and not any(self.padding)

    @property
    def y_shape(self) -> Quad:
        n, c, _, _ = self.x_shape
        return (n, c, self._out(0), self._out(1))

    def by_axes(self) -> tuple[Window, Window]:
        """Return two windows along one axis each. Max pooling by the first, then by the second, gives the
        maxima of this window.

        >>> first, then = Window.of("max_pool2d", (1, 3, 8, 9), 3, 2, 1, 1, False).by_axes()
        >>> first.kernel, first.y_shape, then.kernel, then.y_shape
        ((3, 1), (1, 3, 4, 9), (1, 3), (1, 3, 4, 5))
        """
        (kh, kw), (down, across), (top, left, bottom, right) = self.kernel, self.stride, self.padding
        first = Window.of(
            self.op, self.x_shape, (kh, 1), (down, 1), (top, 0, bottom, 0), (self.dilation[0], 1),
            self.ceil_mode,
        )  # fmt: skip
        return first, Window.of(
            self.op, first.y_shape, (1, kw), (1, across), (0, left, 0, right), (1, self.dilation[1]),
            self.ceil_mode,
        )  # fmt: skip

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
                    f"{self.op}: padding along {axis} is ({before}, {after}) and the kernel spans"
                    f" {self.reach[i]}; padding must be smaller, or a window would contain only padding"
                )
            if self._out(i) < 1:
                raise ArgumentError(
                    f"{self.op}: the kernel spans {self.reach[i]} but {axis} with padding is "
                    f"{self.x_shape[2 + i]} + {before} + {after}; use a smaller kernel, or pad more"
                )
