"""Float activations with int8 weights (scheme q8csw): matrix products, and convolutions as implicit GEMM."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..device.profile_fields import PLENTY
from ..device.profiles import profile
from ..device.refused import SHUFFLE
from ..layout.pack import layout
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value, lets_loop
from ..runtime.device import Device
from ..runtime.packing import pack
from ..runtime.plan import Resident
from ..runtime.program import Program, refusals
from ..select import registers
from ..shader.catalog import catalog
from ..shader.spec import TEXEL_BYTES, Variant
from ..shader.spec import Value as Constant
from . import gemv
from .cast import converted, result_dtype
from .gemm import Rows, viewable
from .pixels import window_constants
from .weights import WEIGHT_LAYOUT, Int8, Int32, block_weights, by_group, ceil4

GEMM_STAGED, CONV_STAGED = "gemm_q8csw__staged", "conv2d_q8csw__staged"
GEMM_LANES, GEMV_AHEAD = "gemm_q8csw__lanes", "gemv_q8csw__ahead"
GEMV_ROWS = (1, 2, 4, 8)  # the possible numbers of rows of a GEMV workgroup
PARAMETERS = 3  # vec4s for each block of four channels: shaders/common/float_output.glslh
# Tiles in shared memory, in order of preference, each with a minimum number of workgroups. A tile is chosen
# if the product has at least this number of workgroups, and fills more than half of the tile's rows.
MIDDLE_TILES, SMALLEST_STAGED = (("128x128", 120), ("64x64", 200)), "32x32"
STAGED_TILES = {
    GEMM_STAGED: (("128x256", 396), *MIDDLE_TILES, ("64x32x4", 200), ("32x32x8", 0), (SMALLEST_STAGED, 0)),
    CONV_STAGED: (("256x128", 250), *MIDDLE_TILES, ("64x32x4", 96), ("32x32x4", 0), (SMALLEST_STAGED, 0)),
}


@dataclasses.dataclass(frozen=True)
class Affine:
    """The epilogue of each output channel: ``sum * scale + bias``, clamped to *bounds*."""

    scale: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    bounds: tuple[float, float]

    def blocks(self, zero_points: Int32) -> npt.NDArray[np.float32]:
        """Return the epilogue's parameters and the weights' zero points (G, N), packed as [block of four
        channels][PARAMETERS][4 channels]."""
        groups, n = zero_points.shape
        padded = np.zeros((groups, 4 * ceil4(n), PARAMETERS), np.float32)
        padded[:, :n, 0] = by_group(self.scale, groups, n)
        padded[:, :n, 1] = by_group(self.bias, groups, n)
        # the offset that the shader subtracts from every weight (shaders/common/float_weight.glslh)
        padded[:, :, 2] = 2**23 + 128
        padded[:, :n, 2] += zero_points
        return np.ascontiguousarray(padded.reshape(-1, 4, PARAMETERS).transpose(0, 2, 1))

    @property
    def constants(self) -> dict[str, Constant]:
        """The specialization constants of every kernel."""
        return {"CLAMPED": self.bounds != (-math.inf, math.inf)}

    @property
    def push(self) -> dict[str, int | float]:
        """The push constants of every kernel."""
        return {"y_low": self.bounds[0], "y_high": self.bounds[1]}


class Matrices(Protocol):
    """A product on matrix units (`vkq.kernels.half`) or in float16 arithmetic (`vkq.kernels.float16`)."""

    def worth(self, rows: int, n: int, dtype: str) -> bool:
        """Return True if this product is faster than the other kernels, for an x of *rows* rows of this
        dtype and *n* columns of the result."""

    def writes(self, x: Value, rows: int) -> str:
        """Return the dtype of the results of *rows* rows."""

    def build(self, b: Builder, x: Value, y: Value, rows: int) -> None:
        """Add the product to a plan."""


class FloatGemm:
    """The product of float rows with int8 weights.

    - *weight*: a function that returns the int8 weights (G, N, K) of this *shape* when a kernel needs them.
    - *zero_point*: (G, N), in int8's range.
    - *channels*: the number of output channels without padding."""

    def __init__(
        self,
        device: Device,
        shape: tuple[int, int, int],
        weight: Callable[[], Int8],
        zero_point: Int32,
        affine: Affine,
        channels: int,
    ):
        self.device, self.channels, self.affine = device, channels, affine
        self.groups, self.n, self.k = shape
        self.n4, self.k4 = ceil4(self.n), ceil4(self.k)
        self.weight, self.zero_point = weight, zero_point
        self.matrices: Matrices | None = None  # the kernel of this product on matrix units
        self.kernel = "auto"  # "auto", or the kernel to use: "gemv", "tiled" or "staged"
        self.weights = Resident(
            device,
            self.groups * self.n4 * self.k4 * 16,
            lambda: pack(layout(WEIGHT_LAYOUT), block_weights(weight(), zero_point)),
        )
        size = self.groups * self.n4 * PARAMETERS * 16
        self.parameters = Resident(device, size, lambda: affine.blocks(zero_point))

    def _few(self, m: int) -> bool:
        """Return True if the GEMV kernel is used for m rows."""
        few = m <= gemv.max_rows(self.device.capabilities, int8=False) and not self._shared(m)
        return self.kernel == "gemv" or (self.kernel == "auto" and (few or not self.k))

    def _shared(self, m: int) -> bool:
        """Return True if m rows use the kernel in which the lanes of a subgroup share their loads."""
        return self.kernel == "auto" and self.shares_lanes(m * self.k4) and not registers.is_picked()

    def program(self, m: int, dtype: str = "float32") -> Program:
        """Return the pipeline for a product of m rows. If ``kernel`` is "auto", m decides the kernel. Only
        the GEMV kernel supports float16 rows."""
        facts = self.device.capabilities
        if self._few(m):
            numbers = "_float16" * (dtype == "float16")
            return self._ending(self._gemv(m, numbers), m, numbers)
        if self._shared(m):
            rows = next((n for n in GEMV_ROWS if n >= m), GEMV_ROWS[-1])
            return self.lanes_program(self._variant(GEMM_LANES), ROWS=rows)
        staged = staged_tile(facts, GEMM_STAGED, m, self.n, self.groups)
        if self.kernel == "staged" and self.k:
            return self._program(self._variant(GEMM_STAGED, tile=staged or SMALLEST_STAGED))
        if self.kernel == "auto" and staged and not registers.is_picked():
            return self._program(self._variant(GEMM_STAGED, tile=staged))
        shape = registers.ProductShape(registers.FLOATS, "f32", ceil4(m), self.n4, self.k4, self.groups)
        setting = registers.choose_setting(self.device, shape)
        program = self._program(self._variant("gemm_q8csw__tiled", tile=setting.tile), **setting.local)
        return self._ending(program, m) if self.kernel == "auto" else program

    def _ending(self, program: Program, m: int, numbers: str = "") -> Program:
        """Return *program* for m rows, or a GEMV pipeline that splits k if the driver would abort the
        program's loop over k. *numbers*: "_float16" for float16 rows, else ""."""
        ends = lets_loop(self.device, program.rounds({"k": self.k}))
        return program if ends else self._gemv(m, numbers, share=True)

    def _gemv(self, m: int, numbers: str, share: bool = False) -> Program:
        facts = self.device.capabilities
        most = max(1, gemv.max_rows(facts, int8=False))
        rows = next((n for n in GEMV_ROWS if n >= m), GEMV_ROWS[-1])
        rows = max(n for n in GEMV_ROWS if n <= min(rows, most))
        if profile(facts).registers == PLENTY and not share and self.k4 >= gemv.LEAST_AHEAD:
            variant = self._variant(GEMV_AHEAD, numbers, rows=str(rows))
            return self._program(variant, **gemv.ahead(facts, self.n4))
        variant = self._variant("gemv_q8csw__split", numbers, rows=str(rows))
        shared = int(facts.properties["maxComputeSharedMemorySize"]) // (16 * rows)
        unroll = min(profile(facts).gemv_unroll, 4 if rows < GEMV_ROWS[-1] else 2)
        return self._program(variant, UNROLL=unroll, **gemv.split(facts, self.n4, self.k4, m, shared, share))

    def shares_lanes(self, x_texels: int = 1) -> bool:
        """Return True if the lanes of a subgroup should share their loads of x, of this size in texels."""
        facts, x_bytes = self.device.capabilities, TEXEL_BYTES * x_texels
        return lanes(facts) > 0 and viewable(facts, x_bytes, self.weights.bytes, self.parameters.bytes)

    def lanes_program(self, variant: Variant, **constants: Constant) -> Program:
        """Return the pipeline of a variant in which each workgroup is one subgroup."""
        size = lanes(self.device.capabilities)
        constants |= {"LANES": size, **self.affine.constants}
        return self.device.program(variant, constants, size)

    def _variant(self, shader: str, numbers: str = "", **axes: str) -> Variant:
        return catalog().find(shader, x=("any" if self.k % 4 else "four") + numbers, **axes)

    def _program(self, variant: Variant, **constants: Constant) -> Program:
        return self.device.program(variant, {**constants, **self.affine.constants})

    def build(self, b: Builder, x: Value, y: Value, rows: Rows, extra: Sequence[Value] = ()) -> None:
        m = rows.count
        if matrices := self._matrices(x, m):
            matrices.build(b, x, y, m)
        else:
            slots = self.slots(b, converted(b, x, y.spec.dtype), y)
            b.dispatch(self.program(m, y.spec.dtype), slots, self.push(m), self.macs(m))

    def _matrices(self, x: Value, m: int) -> Matrices | None:
        found = self.matrices if self.kernel == "auto" and self.k else None
        return found if found and found.worth(m, self.n, x.spec.dtype) else None

    def writes(self, x: Value, m: int) -> str:
        """Return the dtype of the results of m rows."""
        if matrices := self._matrices(x, m):
            return matrices.writes(x, m)
        return result_dtype(self.device, x) if self._few(m) else "float32"

    def slots(self, b: Builder, x: Value, y: Value) -> list[Value]:
        """Return the values that a kernel binds."""
        return [x, b.constant(self.weights), b.constant(self.parameters), y]

    def push(self, m: int, plane: int = 1) -> dict[str, int | float]:
        """Return the push constants of a product of m rows. *plane*: the number of rows of one image."""
        return {
            "m": m, "n4": self.n4, "k": self.k, "groups": self.groups, "channels": self.channels,
            "plane": plane, **self.affine.push,
        }  # fmt: skip

    def macs(self, m: int) -> int:
        """Return the number of multiply-adds for m rows, padding included."""
        return int(4 * m * self.n4 * self.k * self.groups)


def of_floats(device: Device, weight: npt.NDArray[Any], affine: Affine, groups: int) -> FloatGemm:
    """Return the im2col product of a float weight (OC, IC/groups, KH, KW). It has only the sizes of the
    weight; kernels get the weight separately."""
    oc, channels, kh, kw = weight.shape
    shape = groups, oc // groups, kh * kw * channels
    return FloatGemm(device, shape, _no_bytes, np.zeros(shape[:2], np.int32), affine, oc)


def _no_bytes() -> Int8:
    raise AssertionError("a float weight has no int8 form")


class FloatImplicit:
    """A convolution through shared memory (implicit GEMM). *gemm* has the weight (G, N, K) with k = (kh,
    kw, channel)."""

    def __init__(self, gemm: FloatGemm, tile: str | None = None):
        self.gemm = gemm
        self.tile = tile  # tests and measurements set it to force a tile

    @staticmethod
    def fits(capabilities: Capabilities, p: Conv2dProblem) -> bool:
        """Return True if the convolution is large enough for tiles in shared memory."""
        return staged_tile(capabilities, CONV_STAGED, p.gemm_m, p.oc // p.groups, p.groups) is not None

    def writes(self, x: Value) -> str:
        return "float32"

    def program(self, p: Conv2dProblem) -> Program:
        gemm = self.gemm
        found = staged_tile(gemm.device.capabilities, CONV_STAGED, p.gemm_m, gemm.n, gemm.groups)
        variant = catalog().find(CONV_STAGED, tile=self.tile or found or SMALLEST_STAGED)
        whole = p.ic // p.groups % int(variant.sizes["KT"]) == 0
        return gemm.device.program(variant, {"WHOLE_STEPS": whole, **gemm.affine.constants})

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        gemm = self.gemm
        push = gemm.push(p.gemm_m, p.oh * p.ow) | window_constants(p) | {
            "group_channels": p.ic // p.groups, "ow": p.ow,
        }  # fmt: skip
        b.dispatch(self.program(p), gemm.slots(b, converted(b, x, "float32"), y), push, gemm.macs(p.gemm_m))


def lanes(capabilities: Capabilities) -> int:
    """Return the number of lanes of a subgroup if they should share loads of x on this device, else 0."""
    facts = capabilities.facts
    if not (profile(capabilities).lane_loads and facts["subgroupSizeControl"]):
        return 0
    size = int(facts["subgroupSize"])
    able = facts["computeFullSubgroups"] and facts["supportedOperations"] & SHUFFLE and size % 4 == 0
    return size if able else 0


def staged_tile(capabilities: Capabilities, shader: str, rows: int, n: int, groups: int) -> str | None:
    """Return the tile in shared memory for a product of *rows* rows and *n* columns. Return None if tiles
    in registers are as fast, or the product is smaller than every tile."""
    if profile(capabilities).staged is None or rows < 16 or n < 16:
        return None
    for tile, least in STAGED_TILES[shader]:
        tall, wide = (int(size) for size in tile.split("x")[:2])
        variant = next(v for v in catalog().shaders[shader].variants if v.axes["tile"] == tile)
        enough = groups * -(-rows // tall) * -(-n // wide) >= least and 2 * rows > tall
        if enough and not refusals(variant, variant.constants({}), capabilities):
            return tile
    return None
