"""Two convolutions as one dispatch: a 1x1 convolution and the depthwise convolution of its result."""

from __future__ import annotations

import dataclasses
import math

from ..device.profiles import profile
from ..kernels.depthwise import Depthwise
from ..kernels.expanded import ExpandDepthwise, ExpansionTile
from ..kernels.gemm import Int8Gemm
from ..kernels.matrix_units import MatrixGemm
from ..kernels.weights import ceil4
from ..layout.extent import Spec
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.eager import run
from ..runtime.tensor import Tensor
from .conv2d import Conv2d


@dataclasses.dataclass(frozen=True)
class Expansion:
    """Two convolutions in one dispatch: the layers, their kernel, the second layer's problem, the layout of
    x and y, and the tile. `of` creates it."""

    first: Conv2d
    second: Conv2d
    kernel: ExpandDepthwise
    problem: Conv2dProblem
    layout: str
    tile: ExpansionTile

    @classmethod
    def of(cls, first: Conv2d, second: Conv2d, x: Spec) -> Expansion | None:
        """Return the two convolutions as one dispatch for 8-bit images of spec *x*, or None if this is
        impossible or not faster on this device. *second* must be the only reader of *first*'s result."""
        operands = _operands(first, second, x)
        if operands is None:
            return None
        product, kernel, p = operands
        if bytes_between(p) > most_bytes(first.device, p) or ExpandDepthwise.refusal(*operands):
            return None
        path = first.choice().path if MatrixGemm.worth(p.n * p.h * p.w) else ""
        both = ExpandDepthwise(product, kernel, path)
        layout = x.layout if x.layout in both.layouts else both.layouts[0]
        tile = both.tile(p, Spec(x.shape, x.dtype, layout))
        return None if tile is None else cls(first, second, both, p, layout, tile)

    @property
    def reason(self) -> str:
        """The reason for one dispatch, as text."""
        size, most = bytes_between(self.problem), most_bytes(self.first.device, self.problem)
        image = f"the intermediate image ({size} bytes)"
        return f"{image} stays in shared memory, which is faster up to {most} bytes"

    def build(self, b: Builder, x: Value) -> Value:
        x, _ = self.first._scheme.take(b, x, self.layout)
        y = b.new(self.second._scheme.result(self.problem.y_shape, self.layout))
        self.kernel.build(b, self.problem, x, y, self.tile)
        return y


def _operands(
    first: Conv2d, second: Conv2d, x: Spec
) -> tuple[Int8Gemm, Depthwise, Conv2dProblem] | None:  # fmt: skip
    """Return (product of the 1x1 convolution, depthwise kernel, problem of the depthwise convolution).
    Return None if the layers have other kernels, or if a method was requested by name."""
    if not (first.method == second.method == "auto" and first.is_product) or x.shape[1] == 0:
        return None
    product, found = first.gemm, second.depthwise(first._problem_of(x.shape)[0].y_shape)
    if product is None or found is None or product.arithmetic.out != "q8to":
        return None
    return (product, *found) if math.prod(found[1].y_shape) else None


def bytes_between(p: Conv2dProblem) -> int:
    """Return the size of the intermediate images in bytes, which two separate dispatches would write and
    read."""
    return p.n * p.ic * p.h * p.w


def most_bytes(device: Device, p: Conv2dProblem) -> int:
    """Return the largest size of the intermediate images, in bytes, for which one dispatch is faster: the
    profile's `expanded_bytes` times the number of cores.

    The profile's value is for 3x3 kernels, whose taps fill three words (a word has up to four taps of one
    row). The taps of a 5x5 kernel fill ten words, so its limit is 3/10 of the value."""
    known = profile(device.capabilities)
    return known.expanded_bytes * known.multiprocessors * 3 // (p.kh * ceil4(p.kw))


def applied(first: Conv2d, second: Conv2d, x: Tensor) -> Tensor:
    """Return second(first(x)) for 8-bit images x, in one dispatch if this is faster."""
    b = Builder(first.device)
    given, found = b.input(x.spec), Expansion.of(first, second, x.spec)
    y = found.build(b, given) if found else second.build(b, first.build(b, given))
    return run(b.plan(y), (x,))
