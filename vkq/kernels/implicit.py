"""Convolutions as implicit GEMMs with dot products: the kernel gathers the input while it loads tiles,
without an im2col matrix. Images are in kPackedInt8_4W4C. Offsets, multipliers and results have the same
bits as those of `vkq.kernels.gemm.Int8Gemm`."""

from __future__ import annotations

from ..device.capabilities import Capabilities
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.program import Program
from ..shader.catalog import catalog
from .gemm import SMALLEST_STAGED, Int8Gemm, staged_tile
from .pixels import pixel_rows, window_constants


class Implicit:
    """A convolution through shared memory. The weight of *gemm* is (G, N, K) with k = (kh, kw, ic), ic a
    multiple of four."""

    def __init__(self, gemm: Int8Gemm, tile: str | None = None):
        self.gemm = gemm
        self.tile = tile

    @staticmethod
    def fits(capabilities: Capabilities, p: Conv2dProblem) -> bool:
        """Return True if the convolution is large enough for tiles in shared memory."""
        return staged_tile(capabilities, pixel_rows(p, 4).blocks, p.oc // p.groups // 4, True) is not None

    def program(self, p: Conv2dProblem) -> Program:
        gemm = self.gemm
        found = staged_tile(gemm.device.capabilities, pixel_rows(p, 4).blocks, gemm.n4, True)
        name, tile = "conv2d_q8ta_q8csw__staged", self.tile or found or SMALLEST_STAGED
        variant = catalog().find(name, dot=gemm.form, tile=tile, **gemm.arithmetic.axes)
        return gemm.device.program(variant, gemm.constants())

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        gemm, rows = self.gemm, pixel_rows(p, 4)
        push = gemm.push(rows, 0, rows.blocks) | window_constants(p) | {
            "group_channels": gemm.k // (p.kh * p.kw), "x_zero_point": gemm.arithmetic.x_zero_point,
        }  # fmt: skip
        slots = [x, b.constant(gemm.weights), b.constant(gemm.parameters), y]
        in_place = gemm.arithmetic.after.in_place
        b.dispatch(self.program(p), slots, push, gemm.block_macs(rows.blocks), in_place)
