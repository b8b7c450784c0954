"""The int8 matrix product on matrix units (VK_KHR_cooperative_matrix): which shapes a device has, and the dispatches."""

from __future__ import annotations

from ..device.capabilities import Capabilities, CooperativeMatrix
from ..runtime.device import Device
from ..runtime.program import Program
from ..shader.catalog import catalog
from . import selftest
from .gemm import Int8Gemm

FORM = "coopmat"
SUBGROUP = 32
SHAPES = ("16x8x32", "16x16x32", "16x16x16", "8x8x16")  # in order of preference: those that the shaders have


def advertised(capabilities: Capabilities) -> tuple[str, ...]:
    """The shapes of the shaders that the device lists for int8 times int8 into int32, subgroup scope, not saturating.

    Only these may be used: a shape that is not listed makes a pipeline that computes nothing, without an error.
    """

    def fits(c: CooperativeMatrix) -> bool:
        types = (c.a, c.b, c.c, c.d) == ("s8", "s8", "s32", "s32")
        return types and c.scope == "subgroup" and not c.saturating

    listed = {f"{c.m}x{c.n}x{c.k}" for c in capabilities.cooperative_matrices if fits(c)}
    return tuple(shape for shape in SHAPES if shape in listed)


class CoopmatGemm(Int8Gemm):
    """`Int8Gemm` on matrix units: the same dispatches with weights packed for them. Weight zero points must be 0."""

    weight_layout = "kPackedInt8_16K"
    tile: str | None = None  # for measurements: this tile instead of the one that the sizes choose
    shape: str | None = None

    def program(self, m4: int) -> Program:
        """The pipeline for a product with so many row blocks."""
        shape = self.shape or advertised(self.device.capabilities)[0]
        tile = self.tile or "128x128x64_2x2"
        variant = catalog().find("gemm_q8ta_q8csw__coopmat", out=self.out, shape=shape, tile=tile)
        return self.device.program(variant, {"SOFT_FLOAT": selftest.report(self.device).soft_float}, SUBGROUP)


__all__ = ["FORM", "SHAPES", "CoopmatGemm", "Device", "advertised"]
