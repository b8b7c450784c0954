"""The matrix products that linear layers and convolutions share: weights, and the dispatches of a product."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..layout.pack import layout
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.packing import pack
from ..runtime.plan import Resident
from ..runtime.program import Program
from ..select import tune
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from . import gemv
from .weights import PARAMETER_BYTES, WEIGHT_LAYOUT, Arithmetic, Int8, Int32, block_weights, ceil4

FLOAT_WORDS = 256  # of k that float lanes sum exactly: WORDS_PER_FLUSH of shaders/common/dot4x8.glslh
INVOCATIONS = 64  # of a workgroup: every device has them, and most schedule them well


@dataclasses.dataclass(frozen=True)
class Rows:
    """Where the rows of a product lie in its result: ``lines`` lines of ``ow`` pixels, ``oh`` of them an
    image.

    A row of the matrix is one pixel, and every line is ``ow_padded`` rows long. A linear layer has lines of
    one pixel.
    """

    lines: int
    oh: int = 1
    ow: int = 1
    ow_padded: int = 1

    @property
    def count(self) -> int:
        return self.lines * self.ow_padded

    @property
    def blocks(self) -> int:
        return ceil4(self.count)

    @property
    def push(self) -> dict[str, int | float]:
        """The push constants."""
        return {"lines": self.lines, "oh": self.oh, "ow": self.ow, "ow_padded": self.ow_padded}


class Int8Gemm:
    """The int8 product in one dot form. *weight* makes (G, N, K) int8 of this *shape* when it is needed,
    *zero_point* is (G, N) alike; *channels* is the number of real output channels."""

    unit = 4  # rows of a block: results are written by whole blocks

    def __init__(
        self,
        device: Device,
        shape: tuple[int, int, int],
        weight: Callable[[], Int8],
        zero_point: Int32,
        arithmetic: Arithmetic,
        form: str,
        channels: int,
    ):
        self.device, self.arithmetic, self.form, self.channels = device, arithmetic, form, channels
        self.groups, self.n, self.k = shape
        self.n4, self.k4 = ceil4(self.n), ceil4(self.k)
        self.row_sums = bool(zero_point.any())
        self.kernel = "auto"  # or "gemv", "tiled", "staged"

        def blocked() -> Int8:
            return block_weights(weight(), zero_point)

        size = self.groups * self.n4 * self.k4 * 16
        self.weights = Resident(device, size, lambda: pack(layout(WEIGHT_LAYOUT), blocked()))
        self.parameters = arithmetic.after.before(
            device,
            self.groups * self.n4 * PARAMETER_BYTES,
            lambda: arithmetic.channel_parameters(blocked(), form, zero_point),
        )

    def variant(self, kernel: str, **axes: str) -> Variant:
        """The variant of a kernel (``gemm_{}__tiled``) for the scheme, dot form and output of this
        product."""
        a = self.arithmetic
        return catalog().find(kernel.format(a.family), dot=self.form, **a.axes, **axes)

    def program(self, m4: int) -> Program:
        """The pipeline for a product with so many row blocks: tiles in shared memory, or in registers
        alone."""
        staged = self.staged_tile(m4)
        if staged:
            return self.device.program(self.variant("gemm_{}__staged", tile=staged), self.constants())
        shape = tune.ProductShape(self.form, self.arithmetic.out, m4, self.n4, self.k4, self.groups)
        setting = tune.choose_setting(self.device, shape)
        variant = self.variant("gemm_{}__tiled", tile=setting.tile)
        return self.device.program(variant, {**setting.local, **self.constants()})

    def staged_tile(self, m4: int) -> str | None:
        """The tile through shared memory for so many row blocks, or None where the plain kernel is to do
        it."""
        if self.kernel not in ("auto", "staged") or tune.is_forced():
            return None
        if f"gemm_{self.arithmetic.family}__staged" not in catalog().shaders:
            return None
        tile = staged_tile(self.device.capabilities, m4, self.n4)
        return tile or (SMALLEST_STAGED if self.kernel == "staged" else None)

    def gemv_program(self, rows: int) -> Program:
        """The pipeline for so few rows that reading the weights is the work (`gemv`)."""
        local = gemv.split(self.device.capabilities, self.n4, self.k4, rows)
        constants = {**local, **self.constants(-(-self.k4 // int(local["LOCAL_Y"])))}
        variant = self.variant("gemv_{}__split", rows=str(max(1, min(rows, 4))))
        return self.device.program(variant, constants)

    def chosen(self, rows: Rows, m4: int) -> Program:
        """The pipeline for these rows: by their number, unless ``kernel`` names it."""
        most = gemv.max_rows(self.device.capabilities)
        if rows.ow < rows.ow_padded == 4:  # narrow images: a block is a line, the rest of which is padding
            few, fits = rows.ow, rows.ow * m4 <= most * (4 // rows.ow)
        else:
            few = rows.count if rows.ow == rows.ow_padded else 4 * (m4 - 1) + min(rows.ow, 4)
            fits = few <= most
        if self.kernel == "gemv" or (self.kernel == "auto" and fits):
            return self.gemv_program(few)
        return self.program(m4)

    def constants(self, words: int | None = None) -> dict[str, Constant]:
        """The specialization constants that all of its kernels have. *words*: of k that one invocation sums;
        by default all."""
        words = self.k4 if words is None else words
        long_k = self.form == "float" and words > FLOAT_WORDS
        return {"ROW_SUMS": self.row_sums, "LONG_K": long_k, **self.arithmetic.after.constants}

    def build(
        self,
        b: Builder,
        x: Value,
        y: Value,
        rows: Rows,
        first: int = 0,
        count: int | None = None,
        extra: Sequence[Value] = (),
    ) -> None:
        """Row blocks [first, first + count) of the result, all by default; x holds just those.

        extra: scale and zero point of every row, where x is quantized by rows.
        """
        m4 = rows.blocks if count is None else count
        slots = [x, b.constant(self.weights), b.constant(self.parameters), y, *extra]
        push, macs = self.push(rows, first, m4), self.block_macs(m4)
        b.dispatch(self.chosen(rows, m4), slots, push, macs, self.arithmetic.after.in_place)

    def block_macs(self, m4: int) -> int:
        """Multiply-adds of so many row blocks, padding included."""
        return int(64 * m4 * self.n4 * self.k4 * self.groups)

    def push(self, rows: Rows, first_m4: int, m4: int) -> dict[str, int | float]:
        """The push constants that every int8 product has."""
        return {
            "m4": m4, "n4": self.n4, "k4": self.k4, "groups": self.groups, "first_m4": first_m4,
            "y_c4": ceil4(self.channels), "channels": self.channels, **rows.push, **self.arithmetic.epilogue,
        }  # fmt: skip

    # What an im2col matrix for it is like (`vkq.kernels.im2col`), in units of blocks of four rows.

    def row_units(self, rows: Rows) -> int:
        return rows.blocks

    @property
    def unit_bytes(self) -> int:
        return self.groups * 16 * self.k4

    def gather(self, group_channels: int) -> Program:
        """The pipeline that makes the im2col matrix."""
        channels = "four" if group_channels % 4 == 0 else "any"
        return self.device.program(catalog().find("im2col_q8__gather", channels=channels))

    def gather_push(self, first: int, count: int) -> dict[str, int | float]:
        """Its push constants for so many units."""
        zero = self.arithmetic.x_zero_point
        return {"m4": count, "k4": self.k4, "first_m4": first, "x_zero_point": zero}


class FloatGemm:
    """The weight-only product: float32 rows times int8 weights dequantized in the shader.

    *parameters* makes (G, 4 * n4, 2) float32: scale and bias of each channel. *bounds* are those of the
    activation.
    """

    unit = 1

    def __init__(
        self,
        device: Device,
        shape: tuple[int, int, int],
        weight: Callable[[], Int8],
        parameters: Callable[[int, int], npt.NDArray[np.float32]],
        bounds: tuple[float, float],
        channels: int,
    ):
        self.device, self.channels, self.bounds = device, channels, bounds
        self.groups, self.n, self.k = shape
        self.n4, self.k4 = ceil4(self.n), ceil4(self.k)
        self.kernel = "auto"  # or "gemv", "tiled"
        zeros = np.zeros(shape[:2], np.int32)
        size = self.groups * self.n4 * self.k4 * 16
        self.weights = Resident(
            device, size, lambda: pack(layout(WEIGHT_LAYOUT), block_weights(weight(), zeros))
        )

        def packed() -> npt.NDArray[np.float32]:
            padded = np.zeros((self.groups, 4 * self.n4, 2), np.float32)
            padded[:, : self.n] = parameters(self.groups, self.n)
            return np.ascontiguousarray(padded.reshape(-1, 4, 2).transpose(0, 2, 1))

        self.parameters = Resident(device, self.groups * self.n4 * 32, packed)

    def program(self, m: int) -> Program:
        """The pipeline for a product with so many rows."""
        clamped, facts = self.bounds != (-math.inf, math.inf), self.device.capabilities
        few = m <= gemv.max_rows(facts, int8=False)
        if self.kernel == "gemv" or (self.kernel == "auto" and few):
            x, rows = "any" if self.k % 4 else "four", str(max(1, min(m, 4)))
            variant = catalog().find("gemv_q8csw__split", x=x, rows=rows)
            local = gemv.split(facts, self.n4, self.k4, m)
            return self.device.program(variant, {**local, "CLAMPED": clamped})
        variant = catalog().find("gemm_q8csw__tiled", tile="4x4")
        return self.device.program(variant, {**tune.default_local(facts, ceil4(m)), "CLAMPED": clamped})

    def build(
        self,
        b: Builder,
        x: Value,
        y: Value,
        rows: Rows,
        first: int = 0,
        count: int | None = None,
        extra: Sequence[Value] = (),
    ) -> None:
        """Rows [first, first + count) of the result, all by default; x holds just those."""
        m = rows.count if count is None else count
        low, high = self.bounds
        push: Mapping[str, int | float] = {
            "m": m, "n4": self.n4, "k": self.k, "groups": self.groups, "x_stride": self.k, "first_m": first,
            **rows.push, "channels": self.channels, "y_low": low, "y_high": high,
        }  # fmt: skip
        slots = [x, b.constant(self.weights), b.constant(self.parameters), y, *extra]
        b.dispatch(self.program(m), slots, push, 4 * m * self.n4 * self.k * self.groups)

    # What an im2col matrix for it is like, in units of rows.

    def row_units(self, rows: Rows) -> int:
        return rows.count

    @property
    def unit_bytes(self) -> int:
        return self.groups * 4 * self.k

    def gather(self, group_channels: int) -> Program:
        """The pipeline that makes the im2col matrix."""
        return self.device.program(catalog().find("im2col_f32__gather"))

    def gather_push(self, first: int, count: int) -> dict[str, int | float]:
        """Its push constants for so many units."""
        return {"m": count, "k": self.k, "first_m": first}


Gemm = Int8Gemm | FloatGemm

SMALLEST_STAGED = "32x32"


def staged_tile(capabilities: Capabilities, m4: int, n4: int, conv: bool = False) -> str | None:
    """The tile through shared memory for a product of so many blocks of rows and columns, or None where the
    kernel in registers does as well: the profile's, if the product fills half of it both ways."""
    known = profile(capabilities)
    tile = known.staged_conv if conv else known.staged
    if tile is None:
        return None
    rows, columns = (int(size) // 8 for size in tile.split("x"))
    return tile if m4 >= rows and n4 >= columns else None
