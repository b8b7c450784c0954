"""The int8 matrix product on matrix units (VK_KHR_cooperative_matrix): which shapes a device has, and the dispatches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities, CooperativeMatrix
from ..runtime.device import Device
from ..runtime.program import Program
from ..shader.catalog import catalog
from ..shader.spec import Variant
from . import selftest
from .gemm import Int8, Int8Gemm, Scales

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


def refusal(device: Device) -> str | None:
    """Why the device cannot multiply int8 matrices on matrix units: the missing feature, or shape. None: it can."""
    c = device.capabilities
    for feature in ("cooperativeMatrix", "vulkanMemoryModel", "shaderInt8", "subgroupSizeControl", "computeFullSubgroups"):
        if not c.features[feature]:
            return f"{feature} is false"
    if not advertised(c):
        return f"it lists no s8 x s8 + s32 cooperative matrix of {', '.join(SHAPES)} in subgroup scope"
    least, most = c.properties["minSubgroupSize"], c.properties["maxSubgroupSize"]
    if not least <= SUBGROUP <= most:
        return f"its subgroups have {least} to {most} invocations, not {SUBGROUP}"
    return None


# The tile by the least number of 128 x 128 tiles in the result, below which the smaller tile occupies more of the device.
TILES = ((128, "128x128x128"), (0, "64x64x64"))


class CoopmatGemm(Int8Gemm):
    """`Int8Gemm` on matrix units: the same dispatches with weights packed for them. Weight zero points must be 0."""

    weight_layout = "kPackedInt8_16K"
    shape: str | None = None  # for measurements: this shape instead of the preferred one

    def program(self, m4: int) -> Program:
        """The pipeline for a product with so many row blocks."""
        tiles = -(-m4 // 32) * -(-self.n4 // 32) * self.groups
        tile = self.tile or next(name for least, name in TILES if tiles >= least)
        if self._variant(tile).missing(self.device.capabilities.facts):
            tile = TILES[-1][1]
        return self.device.program(self._variant(tile), {"SOFT_FLOAT": selftest.report(self.device).soft_float}, SUBGROUP)

    def _variant(self, tile: str) -> Variant:
        shape = self.shape or advertised(self.device.capabilities)[0]
        return catalog().find("gemm_q8ta_q8csw__coopmat", out=self.out, shape=shape, tile=tile)


def int8_gemm(
    device: Device, weight: Int8, zero_point: npt.NDArray[np.int32], scales: Scales, form: str, channels: int
) -> Int8Gemm:
    """The product in the form that `vkq.ops.select` chose: arguments as for `Int8Gemm`."""
    kind = CoopmatGemm if form == FORM else Int8Gemm
    return kind(device, weight, zero_point, scales, form, channels)
