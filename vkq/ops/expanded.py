"""Two convolutions as one dispatch: a 1x1 convolution and the depthwise convolution that reads its result."""

from __future__ import annotations

import dataclasses
import math

from ..device.profiles import profile
from ..kernels.expanded import ExpandDepthwise, ExpansionTile
from ..kernels.gemm import Int8Gemm
from ..kernels.repack import repacked
from ..kernels.weights import ceil4
from ..layout.extent import Spec
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.eager import run
from ..runtime.tensor import Tensor
from .conv2d import Conv2d


@dataclasses.dataclass(frozen=True)
class Expansion:
    """The kernel of both convolutions, the second one's problem, and the tile. Made by `of`."""

    first: Conv2d
    second: Conv2d
    kernel: ExpandDepthwise
    problem: Conv2dProblem
    layout: str
    tile: ExpansionTile

    @classmethod
    def of(cls, first: Conv2d, second: Conv2d, x: Spec) -> Expansion | None:
        """Return the two convolutions of 8-bit images like x, where one dispatch can compute them; else
        None. *second* reads the result of *first*, which nothing else reads."""
        if not (first.method == second.method == "auto" and first.is_product):
            return None
        product, found = first.gemm, second.depthwise((x.shape[0], first.weight_shape[0], *x.shape[2:]))
        if found is None or not isinstance(product, Int8Gemm) or product.arithmetic.out != "q8to":
            return None
        kernel, problem = found
        if not (x.shape[1] and math.prod(problem.y_shape)) or ExpandDepthwise.refusal(
            product, kernel, problem
        ):
            return None
        both = ExpandDepthwise(product, kernel, first.choice().path)
        layout = x.layout if x.layout in both.layouts else both.layouts[0]
        tile = both.tile(problem, Spec(x.shape, x.dtype, layout))
        return None if tile is None else cls(first, second, both, problem, layout, tile)

    @property
    def bytes_between(self) -> int:
        """The bytes that two dispatches would write and read between them."""
        p = self.problem
        return p.n * p.ic * p.h * p.w

    @property
    def most_bytes(self) -> int:
        """The bytes between up to which one dispatch is faster on this device: `expanded_bytes` of its
        profile for each core. They hold for 3x3 kernels: a 5x5 one has ten words of taps, not three."""
        known, p = profile(self.first.device.capabilities), self.problem
        return known.expanded_bytes * known.multiprocessors * 3 // (p.kh * ceil4(p.kw))

    @property
    def is_worth(self) -> bool:
        """Whether one dispatch is faster."""
        return self.bytes_between <= self.most_bytes

    @property
    def reason(self) -> str:
        """The reason for one dispatch, in words."""
        most = self.most_bytes
        return f"the {self.bytes_between} bytes between stay on chip; up to {most} that is faster here"

    def build(self, b: Builder, x: Value) -> Value:
        """Add the dispatch to a plan."""
        x, _ = self.first._scheme.take(b, x, self.layout)
        y = b.new(self.second._scheme.result(self.problem.y_shape, self.layout))
        self.kernel.build(b, self.problem, repacked(b, x, self.layout), y, self.tile)
        return y


def applied(first: Conv2d, second: Conv2d, x: Tensor) -> Tensor:
    """Return the result of both convolutions, in one dispatch where that is faster."""
    b = Builder(first.device)
    given, found = b.input(x.spec), Expansion.of(first, second, x.spec)
    y = found.build(b, given) if found and found.is_worth else second.build(b, first.build(b, given))
    return run(b.plan(y), (x,))
