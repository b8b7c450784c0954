"""Products of float16 rows with weights quantized in groups along K (`vkq.numerics.grouped`), on float16
matrix units. The sums of groups are float32. A code of up to eight bits minus an integer zero point is
exact in float16; its product with a float16 value is exact in float32."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..device.profiles import profile
from ..device.tuner import ranked
from ..numerics.grouped import GroupedWeight
from ..probe.matrices import HALF, Matrices, advertised_half
from ..runtime.builder import Builder, Value
from ..runtime.plan import Resident
from ..runtime.program import refusals
from ..select.path import pairs_refusal
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .cast import converted
from .grouped import GroupedGemm, parameters, words
from .half_configs import K_SPLITS, LEAST_COLUMNS, GemmConfig, OperandKind, fits
from .split import counters

# The shaders:
# - FEW: few rows; subgroups share the sum over k
# - AT_ONCE: one row; all weights are requested at once
# - MANY: many rows; weights are loaded directly into matrices
FEW, AT_ONCE = "gemv_q4gsw__coopmat", "gemv_q4gsw__words_coopmat"
MANY = OperandKind(
    HALF, "gemm_q4gsw__straight_coopmat", "gemm_q4gsw__split_straight_coopmat", "straight_tile_cycles"
)
KIND = "tile of weights in groups"  # the name of the tiles of MANY in the tuner's rankings
LANES = 32  # lanes of a subgroup of FEW
FEW_ROWS = (1, 8, 16)  # possible numbers of rows of a workgroup of FEW
FEW_OUTPUTS = (64, 32)  # possible numbers of outputs of a workgroup of FEW
ALONE = ("1", "1_long")  # variants for one row; "1_long" loads more of k at once
# For one row: pairs (minimum number of columns for each multiprocessor, invocations of a workgroup). A
# workgroup of 512 invocations computes 32 columns, and a multiprocessor runs one such workgroup at once.
ALONE_SPLITS = ((96, 128), (33, 256), (0, 512))
# Constants of AT_ONCE:
# - CHUNK, UNIT: elements along k of a subgroup, of a group
# - CHUNKS: maximum number of subgroups
# - LEAST: minimum number of weights for which AT_ONCE is faster than FEW
# - WORKGROUPS: maximum number of workgroups for each multiprocessor
# - WAITING, LATE: with an average of at least WAITING workgroups for each multiprocessor, each subgroup
#   starts about 20 * LATE cycles after the previous subgroup
CHUNK, UNIT, CHUNKS, LEAST, WORKGROUPS, WAITING, LATE = 256, 128, 20, 1 << 20, 2, 1.05, 4
LONG_TURNS = 128  # maximum invocations of a workgroup with registers for longer loop iterations
# {bits of a weight: {elements of a group: minimum number of weights for which one row uses matrix units}}
WORTH_ALONE = {4: {128: 1 << 23, 64: 1 << 24, 32: 1 << 24}, 8: {128: 1 << 23, 64: 1 << 26, 32: 1 << 26}}
SMALLEST_GROUP = 32  # minimum elements of a group; scales of smaller groups do not fit into shared memory
MATRIX = 16  # number of outputs of a weight matrix, and number of its elements along k
BLOCK_BYTES = 32  # bytes of codes for one output of a matrix


def packed_elements(weight: GroupedWeight) -> npt.NDArray[np.uint32]:
    """Pack codes as matrices of 16-bit elements in the order of shaders/common/grouped_matrices.glslh."""
    (n, k), bits = weight.shape, weight.bits
    padding = ((0, -n % MATRIX), (0, -(k * bits // 8) % BLOCK_BYTES))
    codes = np.pad(weight.packed.reshape(n, k * bits // 8), padding)
    blocks = codes.reshape(-1, MATRIX, codes.shape[1] // BLOCK_BYTES, MATRIX // bits, 2 * bits).swapaxes(1, 2)
    found = np.zeros((*blocks.shape[:3], MATRIX // 2), np.uint32)  # two elements in a word
    for i in range(MATRIX // bits):
        found |= _element_pairs(blocks[..., i, :], bits) << np.uint32(bits * i)
    return found.reshape(-1)


def _element_pairs(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint32]:
    """Expand the codes along the last axis to 16-bit elements, two in a word. A code is in the lowest bits
    of its element."""
    whole = codes.astype(np.uint32)
    if bits == 4:
        return np.asarray(whole & 15 | whole >> 4 << 16, np.uint32)
    return np.asarray(whole[..., ::2] | whole[..., 1::2] << 16, np.uint32)


def fills(outputs: int, rows: int, gemm: GroupedGemm) -> bool:
    """Return True if the kernel FEW may use workgroups of *outputs* columns and *rows* rows: the smallest
    always, a larger one on two conditions. It keeps 90 % of the multiprocessors busy (one workgroup each;
    two if *rows* is at most 8). And the busiest multiprocessor gets no more columns than with the smallest
    workgroups."""
    many, fewest = profile(gemm.device.capabilities).multiprocessors, FEW_OUTPUTS[-1]
    busiest, least = (-(-gemm.n // (each * many)) * each for each in (outputs, fewest))
    wanted = outputs if rows > FEW_ROWS[1] else 2 * outputs
    return outputs == fewest or (busiest <= least and gemm.n >= 0.9 * wanted * many)


class GroupedMatrices:
    """The product *gemm* for float16 rows on float16 matrix units. With *rounds*, it also computes products
    of more than 16 float32 rows: they are rounded to float16, and the results are float32. The device must
    list float16 matrices (`vkq.probe.matrices.advertised_half`) and multiply them correctly."""

    def __init__(self, gemm: GroupedGemm, rounds: bool = False):
        self.gemm, self.rounds = gemm, rounds
        weight, device = gemm.weight, gemm.device
        points = weight.zero_points()
        self.zero = int(points.flat[0]) if points.size and gemm.whole else 0
        self.points = int(bool((points != self.zero).any()))
        across = gemm.n + -gemm.n % MATRIX
        codes = across * -(-gemm.k * weight.bits // 8 // BLOCK_BYTES) * BLOCK_BYTES
        self.codes = Resident(device, codes, lambda: words(packed_elements(weight)))
        size = (1 + (self.points and not gemm.half)) * (weight.scale.shape[1] * across + gemm.n)
        self.parameters = Resident(device, 4 * size, lambda: words(self._parameters()))
        self.counters = counters(device)

    def worth(self, rows: int, n: int, dtype: str) -> bool:
        """Return True if this kernel is faster than kernels without matrix units, for *rows* rows of this
        dtype and *n* columns."""
        many = self.rounds and rows > FEW_ROWS[-1] and n % 4 == 0
        able = (dtype == "float16" or many) and n >= LEAST_COLUMNS
        able = able and self.gemm.weight.group >= SMALLEST_GROUP
        return able and (rows > 1 or self.pays_alone or self.at_once) and self.config(rows) is not None

    @property
    def pays_alone(self) -> bool:
        """True if this kernel is faster for one row than a kernel that sums in registers. It is slower for
        few weights, or if the zero points of many groups go through shared memory."""
        group, least = self.gemm.weight.group, WORTH_ALONE[self.gemm.weight.bits]
        return self.gemm.n * self.gemm.k >= least[group] and (group == 128 or not self.points)

    @property
    def at_once(self) -> bool:
        """True if AT_ONCE, which requests all weights at once, should compute products of one row. AT_ONCE
        needs matrices in which an invocation holds pairs of elements along k (`pairs_refusal`)."""
        gemm, known = self.gemm, profile(self.gemm.device.capabilities)
        fits = gemm.weight.bits == 4 and gemm.weight.group == UNIT and not self.points
        few = -(-gemm.k // CHUNK) <= CHUNKS and -(-gemm.n // MATRIX) <= WORKGROUPS * known.multiprocessors
        able = known.matrix_pairs and not pairs_refusal(gemm.device)
        return fits and few and gemm.n * gemm.k >= LEAST and able

    def writes(self, x: Value, rows: int) -> str:
        """Return the dtype of the results of *rows* rows."""
        return x.spec.dtype

    def build(self, b: Builder, x: Value, y: Value, rows: int) -> None:
        gemm, config = self.gemm, self.config(rows)
        assert config is not None
        shared, steps = config.sharing(b, self.counters, rows, gemm.n, gemm.k, 1)
        x = b.once(x, "float16", lambda: converted(b, x, "float16"))
        slots = [x, b.constant(self.codes), b.constant(self.parameters), y, *shared]
        constants = self._constants(config.variant, config.matrices)
        constants |= {"Y_FLOAT": True} if y.spec.dtype == "float32" else {}
        program = gemm.device.program(config.variant, constants, config.matrices.subgroup)
        b.dispatch(program, slots, gemm.push(rows) | steps, gemm.macs(rows))

    def _parameters(self) -> npt.NDArray[np.uint32]:
        """Return the scale and zero point of every group, [group][output], then the biases, in the format
        of shaders/common/grouped_matrices.glslh."""
        gemm, weight = self.gemm, self.gemm.weight

        def across(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            return np.asarray(np.pad(values, ((0, -gemm.n % MATRIX), (0, 0))).T)

        points = across(weight.zero_points()) if self.points else None
        return parameters(across(weight.scales()), points, gemm.added, gemm.half)

    def _constants(self, variant: Variant, matrices: Matrices) -> dict[str, Constant]:
        """Return the specialization constants of a shader."""
        group = {"GROUP": self.gemm.weight.group, "POINTS": self.points, "ZERO": self.zero}
        found = {**matrices.constants(variant), **self.gemm.constants, **group}
        if variant.axes.get("rows") in ALONE:
            found["INVOCATIONS"] = self._invocations_alone
        if variant.shader == AT_ONCE:
            busy = -(-self.gemm.n // MATRIX) / profile(self.gemm.device.capabilities).multiprocessors
            late = LATE if busy >= WAITING else 0
            found |= {"INVOCATIONS": LANES * -(-self.gemm.k // CHUNK), "LATE": late}
        return found

    @property
    def _invocations_alone(self) -> int:
        """The number of invocations of a workgroup that computes one row."""
        facts = self.gemm.device.capabilities
        columns = self.gemm.n / profile(facts).multiprocessors
        wanted = next(size for least, size in ALONE_SPLITS if columns >= least)
        return min(wanted, int(facts.properties["maxComputeWorkGroupSize_x"]))

    @property
    def _long_turns(self) -> bool:
        """True if an iteration of the loop for one row should have twice as many steps: a workgroup has few
        invocations, and scales and zero points leave registers free."""
        weight, few = self.gemm.weight, self._invocations_alone <= LONG_TURNS
        return few and (weight.bits, weight.group, self.points) == (4, 128, 0)

    def config(self, rows: int) -> GemmConfig | None:
        """Return a tile for few rows if one fits, else the tile with the lowest estimated time, else None."""
        if few := next(self._few(rows), None):
            return few
        sizes = (profile(self.gemm.device.capabilities), rows, self.gemm.n, self.gemm.k, 1)
        best_first = sorted(self._many(rows), key=lambda config: config.cycles(*sizes))
        ranks = ranked(KIND, best_first, lambda config: f"{config.variant.name}, k in {config.parts}")
        return next(iter(ranks), None)

    def _few(self, rows: int) -> Iterator[GemmConfig]:
        """Yield the tiles for few rows that can compute this number of rows, the preferred tile first."""
        if rows == 1 and self.at_once:
            yield from self._able(AT_ONCE)
        for tall, wide in itertools.product(FEW_ROWS, FEW_OUTPUTS):
            axes = {"rows": ALONE[self._long_turns] if tall == 1 else str(tall), "outputs": str(wide)}
            if rows <= tall and fills(wide, tall, self.gemm) and catalog().shaders[FEW].having(**axes):
                yield from self._able(FEW, **axes)

    def _many(self, rows: int) -> Iterator[GemmConfig]:
        """Yield the tiles for many rows."""
        y, n = "any" if self.gemm.n % 4 else "four", self.gemm.n
        known = MANY.of(profile(self.gemm.device.capabilities))
        for tile in catalog().shaders[MANY.product].axes["tile"]:
            for parts in K_SPLITS if tile in known else ():
                shader = MANY.split if parts > 1 else MANY.product
                for config in itertools.islice(self._able(shader, y=y, tile=tile), 1):
                    if parts == 1 or config.may_split(rows, n, 1):
                        yield dataclasses.replace(config, parts=parts)

    def _able(self, shader: str, **axes: str) -> Iterator[GemmConfig]:
        """Yield the shader's variant with each of the device's matrix shapes that fits. The shape must be
        that of the packed weights (16 x 16), and the rows of a tile must be whole matrices."""
        facts = self.gemm.device.capabilities
        variant = catalog().find(shader, bits=str(self.gemm.weight.bits), **axes)
        for matrices in advertised_half(facts):
            constants = variant.constants(self._constants(variant, matrices))
            if (matrices.m, matrices.k) != (MATRIX, MATRIX) or refusals(variant, constants, facts):
                continue
            whole = int(variant.sizes["BM"]) % matrices.n == 0 and matrices.subgroup == LANES
            if whole if shader in (FEW, AT_ONCE) else fits(variant, matrices):
                yield GemmConfig(variant, matrices, MANY)
