"""The int8 matrix product on matrix units (VK_KHR_cooperative_matrix): which shapes a device has, and the dispatches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities, CooperativeMatrix
from ..layout import layout
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..shader.catalog import catalog
from ..shader.spec import Variant
from . import selftest, tune
from .gemm import Int8, Int8Gemm, Rows, Scales, block_weights, channel_parameters, upload

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
        if not c.features.get(feature):
            return f"{feature} is false"
    if not advertised(c):
        return f"it lists no s8 x s8 + s32 cooperative matrix of {', '.join(SHAPES)} in subgroup scope"
    least, most = c.properties["minSubgroupSize"], c.properties["maxSubgroupSize"]
    if not least <= SUBGROUP <= most:
        return f"its subgroups have {least} to {most} invocations, not {SUBGROUP}"
    return None


# The tile by the least number of 128 x 128 tiles in the result, below which the smaller tile occupies more of the device.
TILES = ((128, "128x128x128"), (0, "64x64x64"))


LEAST_M4 = 8  # row blocks: with fewer, most of a matrix would be padding, and the weights' bytes decide in any case


class CoopmatGemm(Int8Gemm):
    """`Int8Gemm` with its large products on matrix units. Weight zero points must be 0.

    The weights are on the device twice, for matrix units and for the dot form, which takes few rows and what is forced by name.
    """

    matrix_layout = "kPackedInt8_16K"
    tile: str | None = None  # for tests and measurements: this tile, and this shape, instead of those chosen
    shape: str | None = None

    def __init__(self, device: Device, weight: Int8, zero_point: npt.NDArray[np.int32], scales: Scales, form: str, channels: int):
        super().__init__(device, weight, zero_point, scales, form, channels)
        blocked = block_weights(weight, zero_point)
        self.matrix_weights = upload(device, layout(self.matrix_layout).pack(blocked))
        self.matrix_parameters = upload(device, channel_parameters(blocked, scales, "s8s8", zero_point))

    def on_matrices(self, m4: int) -> bool:
        """Whether matrix units take a product with so many row blocks."""
        return self.kernel == "auto" and m4 >= LEAST_M4 and self.k4 > 0 and not tune.is_forced()

    def chosen(self, rows: Rows, m4: int) -> Program:
        """The pipeline that `dispatch` takes for these rows."""
        return self.matrix_program(m4) if self.on_matrices(m4) else super().chosen(rows, m4)

    def matrix_program(self, m4: int) -> Program:
        """The pipeline on matrix units for a product with so many row blocks."""
        tiles = -(-m4 // 32) * -(-self.n4 // 32) * self.groups
        tile = self.tile or next(name for least, name in TILES if tiles >= least)
        if self._matrix_variant(tile).missing(self.device.capabilities.facts):
            tile = TILES[-1][1]
        soft = selftest.report(self.device).soft_float
        return self.device.program(self._matrix_variant(tile), {"SOFT_FLOAT": soft}, SUBGROUP)

    def _matrix_variant(self, tile: str) -> Variant:
        shape = self.shape or advertised(self.device.capabilities)[0]
        out = "f32" if self.scales.y is None else "q8to"
        return catalog().find("gemm_q8ta_q8csw__coopmat", out=out, shape=shape, tile=tile)

    def dispatch(
        self, recording: Recording, x: Buffer, y: Buffer, rows: Rows, first_m4: int = 0, m4: int | None = None,
        row_parameters: Buffer | None = None,
    ) -> None:  # fmt: skip
        """Row blocks [first_m4, first_m4 + m4) of the result; see `Int8Gemm.dispatch`."""
        count = rows.blocks if m4 is None else m4
        if not self.on_matrices(count):
            super().dispatch(recording, x, y, rows, first_m4, m4, row_parameters)
            return
        buffers = [x, self.matrix_weights, self.matrix_parameters, y]
        recording.dispatch(self.matrix_program(count), buffers, self.push(rows, first_m4, count), self.block_macs(count))


def gemm_kind(path: str) -> type[Int8Gemm]:
    """The class of a product on this path."""
    return CoopmatGemm if path == "coopmat" else Int8Gemm
