"""Two convolutions as one dispatch: a depthwise convolution and the 1x1 convolution that reads its result."""

from __future__ import annotations

import dataclasses
import math

from ..device.profiles import profile
from ..kernels.depthwise import Depthwise
from ..kernels.gemm import Int8Gemm
from ..kernels.matrix_units import MatrixGemm
from ..kernels.projected import DepthwiseProject, ProjectionTile
from ..kernels.repack import repacked
from ..layout.extent import Spec
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.eager import run
from ..runtime.tensor import Tensor
from ..select.path import COOPMAT
from .conv2d import Conv2d


@dataclasses.dataclass(frozen=True)
class Projection:
    """Two convolutions in one dispatch: the layers, their kernel, the first layer's problem, the layout of x
    and y, and the tile. Created by `of`."""

    first: Conv2d
    second: Conv2d
    kernel: DepthwiseProject
    problem: Conv2dProblem
    layout: str
    tile: ProjectionTile

    @classmethod
    def of(cls, first: Conv2d, second: Conv2d, x: Spec) -> Projection | None:
        """Return the two convolutions as one dispatch for 8-bit images of spec *x*; None if that is not
        possible, or not faster on this device. *second* must be the only reader of *first*'s result."""
        if not profile(first.device.capabilities).projected_bytes:
            return None
        operands = _operands(first, second, x)
        if operands is None:
            return None
        kernel, product, p = operands
        if bytes_between(p) > most_bytes(first.device) or DepthwiseProject.refusal(*operands):
            return None
        path = second.choice().path if MatrixGemm.worth(p.n * p.oh * p.ow) else ""
        both = DepthwiseProject(kernel, product, path)
        layout = x.layout if x.layout in both.layouts else both.layouts[0]
        tile = both.tile(p, Spec(x.shape, x.dtype, layout))
        return None if tile is None else cls(first, second, both, p, layout, tile)

    def ending(self, second: Conv2d) -> Projection:
        """Return the dispatch with another second layer, which differs from the first one in its epilogue
        alone."""
        assert second.gemm
        path = COOPMAT if self.kernel.matrices else ""
        return dataclasses.replace(
            self, second=second, kernel=DepthwiseProject(self.kernel.first, second.gemm, path)
        )

    @property
    def reason(self) -> str:
        """The reason for one dispatch, as text."""
        size, most = bytes_between(self.problem), most_bytes(self.first.device)
        image = f"the intermediate image ({size} bytes)"
        return f"{image} stays in shared memory, which is faster up to {most} bytes"

    def build(self, b: Builder, x: Value, other: Value | None = None) -> Value:
        """Add the dispatch to a plan. *other* is the residual that the epilogue of *second* adds; the result
        replaces it in memory."""
        x, _ = self.first._scheme.take(b, x, self.layout)
        shape = self.second._problem_of(self.problem.y_shape)[0].y_shape
        result = self.second._scheme.result(shape, self.layout)
        y = b.new(result) if other is None else b.view(repacked(b, other, self.layout), result)
        self.kernel.build(b, self.problem, x, y, self.tile)
        return y


def _operands(
    first: Conv2d, second: Conv2d, x: Spec
) -> tuple[Depthwise, Int8Gemm, Conv2dProblem] | None:  # fmt: skip
    """Return the depthwise kernel, the 1x1 product and the depthwise problem; None if the layers have no such
    kernels, or their methods are forced."""
    if not (first.method == second.method == "auto" and second.is_product) or x.shape[1] == 0:
        return None
    found, product = first.depthwise(x.shape), second.gemm
    if product is None or found is None or product.arithmetic.out != "q8to":
        return None
    kernel, p = found
    return (kernel, product, p) if math.prod(p.y_shape) and product.channels else None


def bytes_between(p: Conv2dProblem) -> int:
    """Return the size of the intermediate images, in bytes, which two separate dispatches would write and
    read."""
    return math.prod(p.y_shape)


def most_bytes(device: Device) -> int:
    """Return the largest size of the intermediate images, in bytes, for which one dispatch is faster:
    the profile's `projected_bytes` times the number of cores."""
    known = profile(device.capabilities)
    return known.projected_bytes * known.multiprocessors


def applied(first: Conv2d, second: Conv2d, x: Tensor) -> Tensor:
    """Return the result of both convolutions of 8-bit images, in one dispatch if that is faster."""
    b = Builder(first.device)
    given, found = b.input(x.spec), Projection.of(first, second, x.spec)
    y = found.build(b, given) if found else second.build(b, first.build(b, given))
    return run(b.plan(y), (x,))
