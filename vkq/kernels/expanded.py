"""A 1x1 convolution and the depthwise convolution of its result, in one dispatch
(conv_expand_depthwise_q8.comp). The intermediate bytes stay in shared memory."""

from __future__ import annotations

import dataclasses
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
from .after import NOTHING, TABLE
from .depthwise import Depthwise, Dots
from .gemm import Int8Gemm, viewable
from .sharing import runs_beside_others
from .weights import WEIGHT_LAYOUT, ceil4

SHADER = "conv2d_q8ta_q8csw__expand_depthwise"
MATRIX_WEIGHTS = "kPackedInt8_32K"
BLOCKS, INVOCATIONS = (2, 4, 8, 16), 128
START = 100  # cost of starting a workgroup, in the unit of `ExpansionTile.cost`


@dataclasses.dataclass(frozen=True)
class ExpansionTile:
    """The results of one workgroup, and its number of invocations."""

    h: int  # rows
    w: int  # pixels of a row
    blocks: int  # blocks of four channels
    invocations: int = INVOCATIONS
    matrices: Matrices | None = None  # for the 1x1 convolution; None: dot products

    def inside(self, p: Conv2dProblem) -> int:
        """Return the maximum number of words of 4 pixels that a tile reads of each channel of the expanded
        image. Words outside of the image are padding and do not count: they are not computed."""
        lines, left = (self.h - 1) * p.stride[0] + p.kh, ceil4(p.padding[1])
        words = ceil4(4 * left - p.padding[1] + (self.w - 1) * p.stride[0] + p.kw)
        return min(lines, p.h) * min(words, ceil4(p.w))

    def count(self, p: Conv2dProblem) -> int:
        """Return the number of workgroups."""
        return p.n * -(-p.oh // self.h) * -(-p.ow // self.w) * -(-ceil4(p.oc) // self.blocks)

    def cost(self, p: Conv2dProblem, k4: int, cores: int) -> float:
        """Return the estimated time, in units of the time to requantize one expanded word.

        - Product: k4 / 8 units for each expanded word, or k4 / 32 on matrix units.
        - Results: kh / 3 units for each word.
        - On matrix units, idle lanes of a subgroup cost as much as lanes that requantize a word.
        - Up to two workgroups run on a core at the same time."""
        k, lanes_a_word = k4 / 8, 1.0
        if self.matrices:
            k = k4 / 32
            lanes_a_word = max(1.0, 4 * self.matrices.subgroup / (self.matrices.n * self.blocks))
        words = self.blocks * (self.inside(p) * (lanes_a_word + k) + self.h * self.w / 4 * p.kh / 3)
        return (START + words) * max(1.0, self.count(p) / (2 * cores))

    def constants(self, p: Conv2dProblem, k4: int) -> dict[str, Constant]:
        """Return the specialization constants. *p*: the depthwise convolution; *k4*: the number of words of
        input channels of the 1x1 convolution."""
        found: dict[str, Constant] = {
            "TILE_H": self.h, "TILE_W": self.w, "BLOCKS": self.blocks, "LOCAL_X": self.invocations,
            "KERNEL": p.kh, "STRIDE": p.stride[0], "PAD_L": p.padding[1],
        }  # fmt: skip
        if self.matrices is None:
            return found
        n = self.matrices.n
        return {
            **found, **self.matrices.shape_constants, "K16": 2 * -(-k4 // 8),
            "X_PIXELS": n * -(-4 * self.inside(p) // n),
        }  # fmt: skip


class ExpandDepthwise:
    """A 1x1 convolution (a matrix product over pixels) and the depthwise convolution of its result."""

    def __init__(self, first: Int8Gemm, second: Depthwise, path: str = ""):
        self.device, self.first, self.second = first.device, first, second
        self.matrices = self._matrices() if path == COOPMAT else None
        self.layouts = (BLOCKED,) if self.matrices else (IMAGE, BLOCKED)

    @staticmethod
    def refusal(first: Int8Gemm, second: Depthwise, p: Conv2dProblem) -> str | None:
        """Return the reason why one dispatch cannot compute both convolutions, or None. *p*: the depthwise
        convolution."""
        if first.form == "float":
            return "the device has no packed dot product"
        if first.form != second.form:
            return f"the dot forms differ: {first.form} and {second.form}"
        if not second.on_dots(p):
            return (
                "the depthwise convolution needs a kernel of 3x3 or 5x5, stride 1 or 2, dilation 1 and one"
                " output for each channel"
            )
        if max(p.padding) >= p.kh:
            return f"padding is {p.padding}; each result must read a pixel of the image"
        kinds = {one.arithmetic.after.kind for one in (first, second)}
        return None if kinds <= {NOTHING.kind, TABLE} else "an epilogue is not a lookup table"

    def _matrices(self) -> Matrices | None:
        """Return the matrix shape of the 1x1 convolution. Return None if weights have zero points, the dot
        form is not s8s8, or the compiler needs constant trip counts."""
        c, first = self.device.capabilities, self.first
        if first.row_sums or first.form != "s8s8" or counted(c):
            return None
        able = (one for one in advertised(c) if one.form == "s8s8" and one.m in (8, 16))
        return next((one for one in able if INVOCATIONS % one.subgroup == 0), None)

    def tile(self, p: Conv2dProblem, x: Spec) -> ExpansionTile | None:
        """Return the tile with the lowest estimated time, or None if the device can run no tile."""
        cores = profile(self.device.capabilities).multiprocessors
        best_first = sorted(self._tiles(p), key=lambda one: one.cost(p, self.first.k4, cores))
        return next((one for one in best_first if self._runs(p, x, one)), None)

    def _tiles(self, p: Conv2dProblem) -> Iterator[ExpansionTile]:
        widths = {4 * ceil4(p.ow), *(w for w in (8, 16, 32) if w < p.ow)}
        heights = {p.oh, *(h for h in (1, 2, 4, 7, 8, 14, 16) if h < p.oh)}
        m = self.matrices
        able = [one for one in BLOCKS if not m or not (4 * one % m.m or m.subgroup % one)]
        for blocks in (one for one in able if one == able[0] or one < 2 * ceil4(p.oc)):
            yield from (ExpansionTile(h, w, blocks, matrices=m) for h in heights for w in widths)

    def _runs(self, p: Conv2dProblem, x: Spec, tile: ExpansionTile) -> bool:
        return runs_beside_others(
            self.device, self._variant(x, tile), self._constants(p, tile), self._push(p)
        )

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value, tile: ExpansionTile) -> None:
        """Add the two convolutions to a plan. *p*: the depthwise convolution; x and y have the same
        layout."""
        first, second = self.first, self.second
        weights = first.weights_in(MATRIX_WEIGHTS if tile.matrices else WEIGHT_LAYOUT)
        known = [weights, first.parameters, second.dots.lines, second.dots.parameters]
        slots = [x, *(b.constant(one) for one in known), y]
        # Each of the tiles that read a pixel expands it.
        expanded, taps = 4 * tile.inside(p) * 4 * first.k4, tile.h * tile.w * p.kh * 4 * ceil4(p.kw)
        macs = tile.count(p) * 4 * tile.blocks * (expanded + taps)
        b.dispatch(self.program(p, x.spec, tile), slots, self._push(p), macs)

    def _push(self, p: Conv2dProblem) -> dict[str, int | float]:
        second, end = self.second.arithmetic, self.first.arithmetic.epilogue
        return {
            "images": p.n, "h": p.h, "w": p.w, "oh": p.oh, "ow": p.ow, "k4": self.first.k4,
            "channels": p.oc, "pad_t": p.padding[0],
            "pad_value": second.x_zero_point, "y_zero1": end["y_zero_point"], "y_min1": end["y_min"],
            "y_max1": end["y_max"], **second.epilogue,
        }  # fmt: skip

    def program(self, p: Conv2dProblem, x: Spec, tile: ExpansionTile) -> Program:
        """Return the pipeline for this tile and images with the size and layout of x."""
        subgroup = tile.matrices.subgroup if tile.matrices else 0
        return self.device.program(self._variant(x, tile), self._constants(p, tile), subgroup)

    def _constants(self, p: Conv2dProblem, tile: ExpansionTile) -> dict[str, Constant]:
        first, second, unsigned = self.first, self.second, self.first.form == "u8u8"
        return {
            "ROW_SUMS": second.row_sums or unsigned, "ROW_SUMS1": first.row_sums or unsigned,
            "SMALL_SUMS": self._largest(p) < Dots.SMALL, "TABLE1": first.arithmetic.after.kind == TABLE,
            **second.arithmetic.after.constants, **tile.constants(p, first.k4),
        }  # fmt: skip

    def _largest(self, p: Conv2dProblem) -> int:
        """Return a bound of the accumulators of both convolutions."""
        biases = (one.arithmetic.largest_bias for one in (self.first, self.second))
        return 255 * 255 * max(4 * self.first.k4, p.kh * p.kw) + max(biases)

    def _variant(self, x: Spec, tile: ExpansionTile) -> Variant:
        if tile.matrices:
            return catalog().find(f"{SHADER}_coopmat")
        c, first, dots = self.device.capabilities, self.first, self.second.dots
        sizes = x.nbytes, first.weights.bytes, first.parameters.bytes, dots.lines.bytes, dots.parameters.bytes
        texels = x.layout == IMAGE and profile(c).texels and viewable(c, *sizes)
        how = "texels" if texels else PIXELS[x.layout]
        return catalog().find(SHADER, dot=first.form, layout=how)
