"""A depthwise convolution and the 1x1 convolution that reads it, in one dispatch
(conv_expand_depthwise_q8.comp with PROJECT): the intermediate bytes stay in shared memory."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from ..device.profiles import profile
from ..layout.extent import BLOCKED, IMAGE, PIXELS, Spec
from ..probe.matrices import Matrices, advertised, counted
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.program import Program
from ..select.path import COOPMAT
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .after import ADD, NOTHING, TABLE
from .depthwise import Depthwise, Dots
from .expanded import MATRIX_WEIGHTS
from .gemm import Int8Gemm
from .sharing import runs_beside_others
from .weights import WEIGHT_LAYOUT, ceil4

SHADER = "conv2d_q8ta_q8csw__depthwise_project"
LATENCY = 1500  # the time in which a core loads from memory and waits at barriers, in instructions
LANES = 128  # invocations that execute an instruction at the same time
MOST_ITEMS = 4  # blocks of four outputs of an invocation (project_dots.glslh)
MOST_PIXELS = 256  # of a tile
MOST_SUMS = 16  # matrices of sums of a subgroup


@dataclasses.dataclass(frozen=True)
class ProjectionTile:
    """The results that one workgroup computes (rows, pixels of a row), the blocks of four channels that it
    filters at a time, the outputs that it computes (dot products: blocks of four; matrix units: matrices of
    a subgroup), and its number of invocations. matrices: the matrix shape; None: dot products. down: with
    matrices, the number of subgroups that share the pixels."""

    h: int
    w: int
    blocks: int
    outputs: int
    invocations: int = 128
    matrices: Matrices | None = None
    down: int = 1

    @property
    def across(self) -> int:
        """With matrices, the number of subgroups that share the outputs."""
        assert self.matrices
        return self.invocations // self.matrices.subgroup // self.down

    @property
    def columns(self) -> int:
        """The number of outputs of a workgroup."""
        return self.outputs * (self.matrices.m * self.across if self.matrices else 4)

    def count(self, p: Conv2dProblem, n: int) -> int:
        """Return the number of workgroups for a depthwise convolution and *n* outputs."""
        return p.n * -(-p.oh // self.h) * -(-p.ow // self.w) * -(-n // self.columns)

    def cost(self, p: Conv2dProblem, n: int, cores: int) -> float:
        """Return the estimated time in instructions of a core that executes `LANES` at once. Four results of
        four channels take 150 instructions; each line under them 25 for four pixels and 50 for a word of
        taps. A block of 4 x 4 products takes 20 (on matrix units, an instruction is 512 multiply-adds). A
        core reads 64 bytes of weights in the time of an instruction."""
        steps, words = -(-ceil4(p.oc) // self.blocks), self.h * self.w // 4
        line = 25 * ceil4(3 * p.stride[0] + p.kw) + 50 * ceil4(p.kw)
        filtering = -(-words // (self.invocations // self.blocks)) * (150 + p.kh * line)
        product = 20 * -(-self.outputs // max(self.invocations // words, 1)) * self.blocks
        if self.matrices:
            product = 16 * words * self.columns * self.blocks // (512 * self.invocations)
        each = steps * (filtering + product) + 400
        turns = -(-self.count(p, n) // cores)
        reading = turns * 4 * ceil4(p.oc) * self.columns / 64
        return steps * LATENCY + reading + each * max(1.0, turns * self.invocations / LANES)

    def constants(self, p: Conv2dProblem) -> dict[str, Constant]:
        """Return the specialization constants. *p*: the depthwise convolution."""
        found: dict[str, Constant] = {
            "TILE_H": self.h, "TILE_W": self.w, "BLOCKS": self.blocks, "LOCAL_X": self.invocations,
            "KERNEL": p.kh, "STRIDE": p.stride[0], "PAD_L": p.padding[1],
            "STAGES": 1 if self.blocks >= ceil4(p.oc) else 2,
        }  # fmt: skip
        if self.matrices is None:
            return {**found, "OUTPUT_BLOCKS": self.outputs}
        return {
            **found, **self.matrices.shape_constants, "WGM": self.down, "WGN": self.across,
            "FRAGMENTS_N": self.outputs,
        }  # fmt: skip


class DepthwiseProject:
    """A depthwise convolution and the 1x1 convolution (a matrix product over pixels) of its result."""

    def __init__(self, first: Depthwise, second: Int8Gemm, path: str = ""):
        self.device, self.first, self.second = first.device, first, second
        self.matrices = self._matrices() if path == COOPMAT else None
        self.layouts = (BLOCKED,) if self.matrices else (IMAGE, BLOCKED)

    @staticmethod
    def refusal(first: Depthwise, second: Int8Gemm, p: Conv2dProblem) -> str | None:
        """Return why one dispatch cannot compute both convolutions, or None. *p*: the depthwise
        convolution."""
        if second.form == "float":
            return "the device has no packed dot product"
        if first.form != second.form:
            return f"the dot forms differ: {first.form} and {second.form}"
        if not first.on_dots(p):
            return (
                "the depthwise convolution needs a kernel of 3x3 or 5x5, stride 1 or 2, dilation 1 and one"
                " output for each channel"
            )
        if max(p.padding) >= p.kh:
            return f"padding is {p.padding}; each result must read a pixel of the image"
        own, last = (one.arithmetic.after.kind for one in (first, second))
        return None if own in (NOTHING.kind, TABLE) and last <= TABLE | ADD else "an epilogue is not a table"

    def _matrices(self) -> Matrices | None:
        """Return the matrix shape for the 1x1 convolution. None if its weights have zero points, the dot form
        is not s8s8, or the compiler needs constant trip counts."""
        c, second = self.device.capabilities, self.second
        if second.row_sums or second.form != "s8s8" or counted(c):
            return None
        able = (one for one in advertised(c) if one.form == "s8s8" and one.m in (8, 16))
        return next(able, None)

    def tile(self, p: Conv2dProblem, x: Spec) -> ProjectionTile | None:
        """Return the tile with the lowest estimated time that the device can run, or None."""
        cores, n = profile(self.device.capabilities).multiprocessors, self.second.n
        best_first = sorted(self._tiles(p), key=lambda one: one.cost(p, n, cores))
        return next((one for one in best_first if self._runs(p, x, one)), None)

    def _tiles(self, p: Conv2dProblem) -> Iterator[ProjectionTile]:
        widths = {4 * ceil4(p.ow), *(w for w in (4, 8, 16) if w < p.ow)}
        heights = {p.oh, *(h for h in (1, 2, 4, 7, 8) if h < p.oh)}
        c4s, unit = ceil4(p.oc), 8 if self.matrices else 1
        blocks = {unit * -(-c4s // (unit * steps)) for steps in (1, 2, 3, 4, 6, 8, 12, 16, 32)}
        sizes = [(h, w) for h in heights for w in widths if h * w <= MOST_PIXELS]
        for (h, w), block in itertools.product(sizes, blocks):
            for invocations in (64, 128, 256) if self.matrices else (32, 64, 128):
                if block <= invocations:
                    yield from self._outputs(h, w, block, invocations)

    def _outputs(self, h: int, w: int, blocks: int, invocations: int) -> Iterator[ProjectionTile]:
        """Yield the tiles that divide the outputs evenly."""
        n, m = self.second.n, self.matrices
        if m is None:
            most = MOST_ITEMS * (invocations // (h * w // 4))
            if most:
                parts = -(-ceil4(n) // most)
                yield ProjectionTile(h, w, blocks, -(-ceil4(n) // parts), invocations)
            return
        if invocations % m.subgroup:
            return
        unit, subgroups = 16 // min(m.m, 16), invocations // m.subgroup
        for down, parts in itertools.product((1, 2, 4), (1, 2, 4)):
            columns = 16 * max(subgroups // down, 1)
            each = -(-n // (parts * columns)) * unit
            wasted = h * w <= m.n * (down - 1) or (parts > 1 and n <= (parts - 1) * columns)
            fits = each * columns * m.m // 16 <= 4 * invocations and each * m.m * m.n <= 128 * m.subgroup
            if down <= subgroups and fits and not wasted and each * -(-h * w // (down * m.n)) <= MOST_SUMS:
                yield ProjectionTile(h, w, blocks, each, invocations, m, down)

    def _runs(self, p: Conv2dProblem, x: Spec, tile: ProjectionTile) -> bool:
        return runs_beside_others(
            self.device, self._variant(x, tile), self._constants(p, tile), self._push(p)
        )

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value, tile: ProjectionTile) -> None:
        """Add the two convolutions to a plan. *p*: the depthwise convolution; x and y have the same
        layout."""
        first, second = self.first, self.second
        weights = second.weights_in(MATRIX_WEIGHTS if tile.matrices else WEIGHT_LAYOUT)
        known = [first.dots.lines, first.dots.parameters, weights, second.parameters]
        slots = [x, *(b.constant(one) for one in known), y]
        pixels = tile.count(p, second.n) * tile.h * tile.w
        macs = pixels * 4 * ceil4(p.oc) * (4 * p.kh * ceil4(p.kw) + tile.columns)
        in_place = second.arithmetic.after.in_place
        b.dispatch(self.program(p, x.spec, tile), slots, self._push(p), macs, in_place)

    def _push(self, p: Conv2dProblem) -> dict[str, int | float]:
        first, end = self.first.arithmetic, self.first.arithmetic.epilogue
        return {
            "images": p.n, "h": p.h, "w": p.w, "oh": p.oh, "ow": p.ow, "channels": p.oc,
            "outputs": self.second.channels, "pad_t": p.padding[0], "pad_value": first.x_zero_point,
            "y_zero2": end["y_zero_point"], "y_min2": end["y_min"], "y_max2": end["y_max"],
            **self.second.arithmetic.epilogue,
        }  # fmt: skip

    def program(self, p: Conv2dProblem, x: Spec, tile: ProjectionTile) -> Program:
        """Return the pipeline for images with the size and layout of x, and this tile."""
        subgroup = tile.matrices.subgroup if tile.matrices else 0
        return self.device.program(self._variant(x, tile), self._constants(p, tile), subgroup)

    def _constants(self, p: Conv2dProblem, tile: ProjectionTile) -> dict[str, Constant]:
        first, second, unsigned = self.first, self.second, self.first.form == "u8u8"
        sums: dict[str, Constant] = {} if tile.matrices else {"ROW_SUMS": second.row_sums or unsigned}
        return {
            **sums, "ROW_SUMS2": first.row_sums or unsigned, "SMALL_SUMS": self._largest(p) < Dots.SMALL,
            "TABLE2": first.arithmetic.after.kind == TABLE, **second.arithmetic.after.constants,
            **tile.constants(p),
        }  # fmt: skip

    def _largest(self, p: Conv2dProblem) -> int:
        """Return a bound of the accumulators of both convolutions."""
        biases = (one.arithmetic.largest_bias for one in (self.first, self.second))
        return 255 * 255 * max(4 * self.second.k4, p.kh * p.kw) + max(biases)

    def _variant(self, x: Spec, tile: ProjectionTile) -> Variant:
        if tile.matrices:
            return catalog().find(f"{SHADER}_coopmat")
        return catalog().find(SHADER, dot=self.first.form, layout=PIXELS[x.layout])
