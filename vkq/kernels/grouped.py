"""Products of float rows with weights quantized in groups along K (`vkq.numerics.grouped`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..device.profile_fields import FEW, SOME
from ..device.profiles import profile
from ..numerics.grouped import GroupedWeight
from ..numerics.qparams import SMALLEST_SCALE
from ..runtime.builder import Builder, Value, lets_loop
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.program import Program, refusals
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .cast import converted, result_dtype
from .floats import Matrices
from .gemm import Rows
from .weights import ceil4

# The shaders:
# - GEMV: few rows; invocations share the sum over k
# - SHARED: few rows; x is in shared memory
# - ROW: one row; x is in shared memory, and weights are prefetched
# - STAGED: many rows; weights are dequantized into shared memory
GEMV, SHARED, STAGED = "gemv_q4gsw__split", "gemv_q4gsw__shared", "gemm_q4gsw__staged"
ROW = "gemv_q4gsw__row"
CHUNK_BITS = 128  # bits of codes that an invocation of the GEMV kernel loads at once
STEP = 32  # elements along k that STAGED dequantizes at once
MOST_K_SPLITS = 128  # maximum number of parts of k in a workgroup of the GEMV kernel
# For the kernel SHARED. SHARED_PARTS: minimum number of parts of k. SHARED_COLUMNS: columns of a workgroup.
SHARED_PARTS, SHARED_COLUMNS = 32, 8
# For the kernel ROW. ROW_PARTS: maximum number of parts of k. ROW_SPLITS: pairs (minimum number of columns
# for each multiprocessor, size of a workgroup as (parts of k, blocks of two columns)).
ROW_PARTS, ROW_SPLITS = 32, ((96, (16, 32)), (48, (16, 16)), (12, (32, 8)), (0, (32, 4)))
SMALLEST = "32x32"
TRIED = 256  # number of values that are tested before all values are tested
SMALLEST_HALF = 2.0**-14  # the smallest normal float16: a driver may flush smaller numbers


class GroupedGemm:
    """The product of float rows with a weight quantized in groups, plus a bias, clamped to *bounds* (the
    range of the activation function)."""

    def __init__(
        self,
        device: Device,
        weight: GroupedWeight,
        bias: npt.NDArray[np.float32] | None,
        bounds: tuple[float, float],
    ):
        self.device, self.weight, self.bounds = device, weight, bounds
        self.added = np.zeros(weight.shape[0], np.float32) if bias is None else bias
        self.n, self.k = weight.shape
        self.kernel = "auto"  # "auto", or the kernel to use: "gemv", "tiled" or "staged"
        self.matrices: Matrices | None = None  # the kernel of this product on matrix units
        self.half = fits_half(weight)
        self.whole = packed_points(weight) or _whole(weight.zero_points())
        self.codes = Resident(device, max(weight.packed.nbytes, 4), lambda: words(weight.packed))
        size = (weight.scale.size + self.n) * (1 if self.half else 2)
        self.parameters = Resident(
            device,
            max(4 * size, 4),
            lambda: words(parameters(weight.scales(), weight.zero_points(), self.added, self.half)),
        )

    def method(self, rows: int) -> tuple[str, str]:
        """Return the method for *rows* rows ("gemv", "staged" or "tiled"), and its reason."""
        facts = self.device.capabilities
        if self.kernel != "auto":
            return self.kernel, "requested by name"
        if rows <= max(profile(facts).gemv_rows_grouped, self.rows_shared) or not self.k:
            return "gemv", "few rows: reading the weight takes most of the time"
        if staged_tile(facts, str(self.weight.bits), rows, self.n):
            return "staged", "enough rows to share dequantized weights"
        return "tiled", "this device uses no kernel that shares weights"

    def _staged(self, rows: int) -> bool:
        return self.method(rows)[0] == "staged" and self.k > 0

    def writes(self, x: Value, rows: int) -> str:
        """Return the dtype of the results of *rows* rows."""
        if matrices := self._matrices(x, rows):
            return matrices.writes(x, rows)
        return "float32" if self._staged(rows) else result_dtype(self.device, x)

    def _matrices(self, x: Value, rows: int) -> Matrices | None:
        able = self.matrices if self.kernel == "auto" and self.k and self.whole else None
        return able if able and able.worth(rows, self.n, x.spec.dtype) else None

    def program(self, rows: int, dtype: str = "float32") -> Program:
        """Return the pipeline for *rows* rows of *dtype*. The method "staged" supports only float32, the
        others also float16."""
        method, bits = self.method(rows)[0], str(self.weight.bits)
        if self._staged(rows):
            tile = staged_tile(self.device.capabilities, bits, rows, self.n) or SMALLEST
            how = {"GROUPS": max(1, STEP // self.weight.group)}
            return self.device.program(
                catalog().find(STAGED, bits=bits, tile=tile), {**how, **self.constants}
            )
        if method == "gemv" and self.k and self.rows_shared:
            if rows > 1:
                return self.shared(rows, dtype)
            if self.k * self.weight.bits >= ROW_PARTS * CHUNK_BITS:
                return self.row(dtype)
        known = profile(self.device.capabilities)
        rows = max(1, min(rows, known.grouped_rows))
        variant = catalog().find(GEMV, bits=bits, rows=str(rows), x=dtype)
        how = {"IN_TURN": known.registers in (FEW, SOME), "GROUPS": self.chunk_groups, **self.constants}
        program = self.device.program(variant, {**self.split(method == "gemv"), **how})
        if self.kernel == "tiled" or lets_loop(self.device, program.rounds({"k": self.k})):
            return program
        return self.device.program(variant, {**self.split(True, long=True), **how})

    @property
    def rows_shared(self) -> int:
        """The maximum number of rows for which the GEMV kernel keeps x in shared memory; 0 if it never
        does."""
        able = self.whole and self.chunk_groups == 1
        return profile(self.device.capabilities).gemv_rows_shared if able else 0

    @property
    def chunk_groups(self) -> int:
        """The number of groups in the CHUNK_BITS that an invocation loads at once, at least 1."""
        return max(1, CHUNK_BITS // int(self.weight.group * self.weight.bits))

    def _of_numbers(self, shader: str, dtype: str) -> Variant:
        """Return the variant of a shader that decodes weights to float16 if the device has float16
        arithmetic, else to float32."""
        numbers = "half" if self.device.capabilities.features["shaderFloat16"] else "float"
        return catalog().find(shader, bits=str(self.weight.bits), numbers=numbers, x=dtype)

    def row(self, dtype: str) -> Program:
        """Return the pipeline for one row, with x in shared memory. With few columns for each
        multiprocessor, workgroups have fewer columns."""
        columns = self.n / profile(self.device.capabilities).multiprocessors
        parts, blocks = next(split for least, split in ROW_SPLITS if columns >= least)
        how: dict[str, Constant] = {"LOCAL_X": parts, "LOCAL_Y": blocks}
        return self.device.program(self._of_numbers(ROW, dtype), {**how, **self.constants})

    def shared(self, rows: int, dtype: str) -> Program:
        """Return the pipeline for several rows, two at once, with x in shared memory. With few workgroups
        for each multiprocessor, k is divided into more parts."""
        facts = self.device.capabilities
        workgroups = -(-rows // 2) * -(-self.n // SHARED_COLUMNS)
        wanted = profile(facts).multiprocessors * 256 // workgroups
        parts = 2 * SHARED_PARTS if wanted >= 2 * SHARED_PARTS else SHARED_PARTS
        variant = self._of_numbers(SHARED, dtype)
        return self.device.program(variant, {"LOCAL_Y": parts, **self.constants})

    @property
    def constants(self) -> dict[str, Constant]:
        """The specialization constants of all kernels."""
        return {"CLAMPED": self.bounds != (-math.inf, math.inf), "HALF_SCALES": self.half}

    def split(self, share: bool, long: bool = False) -> dict[str, Constant]:
        """Return the size of a workgroup: LOCAL_X blocks of columns and LOCAL_Y parts of k. There are
        several parts if *share* is True and either the profile prefers parts or *long* is True. *long*: k
        is too long for one loop."""
        known = profile(self.device.capabilities)
        if not share or (known.gemv_columns and not long):
            return {"LOCAL_X": known.gemv_columns or 64, "LOCAL_Y": 1}
        chunks = self.k * self.weight.bits // CHUNK_BITS
        parts = 1
        while 2 * parts <= min(MOST_K_SPLITS, chunks):
            parts *= 2
        return {"LOCAL_X": max(1, min(64 // parts, ceil4(self.n))), "LOCAL_Y": parts}

    def build(self, b: Builder, x: Value, y: Value, rows: Rows, extra: Sequence[Value] = ()) -> None:
        if matrices := self._matrices(x, rows.count):
            matrices.build(b, x, y, rows.count)
            return
        method, reason = self.method(rows.count)
        b.why("method", method)
        b.why("method_reason", reason)
        x = converted(b, x, y.spec.dtype)
        slots = [x, b.constant(self.codes), b.constant(self.parameters), y]
        b.dispatch(
            self.program(rows.count, y.spec.dtype), slots, self.push(rows.count), self.macs(rows.count)
        )

    def push(self, rows: int) -> dict[str, int | float]:
        """Return the push constants of a product of *rows* rows."""
        low, high = self.bounds
        sizes = {"m": rows, "n": self.n, "k": self.k, "group": self.weight.group}
        return {**sizes, "y_low": low, "y_high": high}

    def macs(self, rows: int) -> int:
        """Return the number of multiply-adds for *rows* rows."""
        return int(rows * self.n * self.k)


def staged_tile(capabilities: Capabilities, bits: str, rows: int, n: int) -> str | None:
    """Return the tile in shared memory for a product of *rows* rows and *n* columns, or None if tiles in
    registers are as fast."""
    known = profile(capabilities)
    if known.staged is None:
        return None
    variants = {variant.name: variant for variant in catalog().shaders[STAGED].variants}
    for tile, least in known.grouped_tiles:
        size = int(tile.split("x")[0])
        fills = -(-rows // size) * -(-n // size) >= least * known.multiprocessors
        half_full = 2 * rows > size or tile.startswith(SMALLEST)
        variant = variants.get(f"{STAGED}:{bits}.{tile}")
        if variant and fills and half_full and not refusals(variant, variant.constants({}), capabilities):
            return tile
    return SMALLEST


def fits_half(weight: GroupedWeight) -> bool:
    """Return True if float16 represents every scale and every zero point exactly, as zero or a normal
    number: a driver may flush subnormal numbers."""
    scales = _fits_half(weight.scale, SMALLEST_SCALE)
    return scales and (packed_points(weight) or _fits_half(weight.zero_points(), 0))


def packed_points(weight: GroupedWeight) -> bool:
    """Return True if the zero points are stored as uint8 or are the default. They are then integers from 0
    to 255 and need no check."""
    return weight.zero_point is None or weight.zero_point.dtype == np.uint8


def _fits_half(values: npt.NDArray[Any], least: float) -> bool:
    """Return True if float16 represents every value as in `fits_half`. Values below *least* count as 0."""
    for some in (values.flat[:TRIED], values):  # a fast test of a few values refuses most weights
        size = np.abs(some)
        with np.errstate(over="ignore"):
            exact = some.astype(np.float16) == some
        none = (size == 0) | (size < np.float32(least))
        if not ((exact & (size >= SMALLEST_HALF)) | none).all():
            return False
    return True


def _whole(points: npt.NDArray[np.float32]) -> bool:
    """Return True if zero points are integers from 0 to 255."""
    return bool(((points >= 0) & (points < 256) & (points == np.rint(points))).all())


def parameters(
    scales: npt.NDArray[np.float32],
    points: npt.NDArray[np.float32] | None,
    bias: npt.NDArray[np.float32],
    half: bool,
) -> npt.NDArray[np.uint32]:
    """Return the scale and zero point of every group, then the biases, in the format of
    shaders/common/grouped_weight.glslh. If *points* is None, there are no zero points, and the scales are
    float32."""
    if points is None:
        return np.concatenate([scales.reshape(-1), bias]).astype("<f4").view("<u4")
    pairs = np.stack([scales.reshape(-1), points.reshape(-1)], axis=-1)
    if half:
        return np.concatenate([pairs.astype("<f2").view("<u4").reshape(-1), bias.astype("<f4").view("<u4")])
    tail = np.stack([bias, np.zeros_like(bias)], axis=-1)
    return np.concatenate([pairs, tail]).astype("<f4").view("<u4").reshape(-1)


def words(values: npt.NDArray[np.uint8] | npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Return the bytes of *values* as int32 words for an upload: one zero word if there are none."""
    found = values.reshape(-1).view("<i4")
    return found if found.size else np.zeros(1, np.int32)
