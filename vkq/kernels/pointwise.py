"""1x1 convolutions as matrix products."""

from __future__ import annotations

from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from .gemm import Int8Gemm
from .matrix_units import MatrixGemm, Pixels
from .pixels import pixel_rows


class Pointwise:
    """A 1x1 convolution as a linear layer on pixels. An image in kPackedInt8_4W4C is the layer's matrix
    without a copy."""

    def __init__(self, gemm: Int8Gemm):
        self.gemm = gemm

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        self.gemm.build(b, x, y, pixel_rows(p, self.gemm.unit))


class MatrixPointwise:
    """A 1x1 convolution of any stride on matrix units. It reads only the required pixels, from
    kPackedInt8_16C."""

    def __init__(self, gemm: MatrixGemm):
        self.gemm = gemm

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        self.gemm.build(b, x, y, Pixels.of(p))
