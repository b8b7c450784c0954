"""A depthwise convolution and the 1x1 convolution of its results in one dispatch; see
conv_depthwise_pointwise.comp."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from functools import cached_property

from ..device.profiles import profile
from ..layout.extent import BLOCKED
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.program import refusals
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .after import ADD, TABLE
from .depthwise import Depthwise, Dots
from .gemm import FLOAT_WORDS, Int8Gemm
from .method import Convolution
from .weights import ceil4

SHADER = "conv2d_q8ta_q8csw__depthwise_pointwise"
INVOCATIONS, COLUMNS, SPLITS = (64, 128, 256), (4, 8, 16, 32), (1, 2, 4, 8, 16)  # of the tiles to choose from
WAIT = 4  # cycles of an instruction that waits for the one before it
SMALLEST = 256  # vectors of shared memory: few sizes need few pipelines


def _whole(count: int, least: int) -> int:
    """The power of two from *least* on that holds so many."""
    return max(least, 1 << (count - 1).bit_length())


@dataclasses.dataclass(frozen=True)
class PairTile:
    """What a workgroup computes: ``m4`` blocks of four pixels x ``n4`` of four channels, each block's sum
    shared among ``split`` invocations."""

    m4: int
    n4: int
    split: int

    @property
    def blocks(self) -> int:
        return self.m4 * self.n4

    def vectors(self, k4: int, row_sums: bool) -> int:
        """Of shared memory: all channels of its pixels, or what the others of a split leave."""
        return max(self.m4 * k4, (self.split - 1) * self.blocks * (5 if row_sums else 4))

    def __str__(self) -> str:
        return f"{self.m4}x{self.n4}/{self.split}"


class DepthwisePointwise:
    """Two convolutions, one after the other; nobody else reads what lies between."""

    def __init__(self, first: Convolution, second: Int8Gemm):
        self.device, self.second = first.device, second
        self.first = Depthwise(
            first.device, first.weight, first.zero_points, first.scheme, first.choice.form, first.groups
        )
        self._dots = Dots(self.first, first.weight, first.zero_points)

    def fits(self, p: Conv2dProblem) -> bool:
        """Whether the kernel takes the two products, the first of which is this problem."""
        first, second, stride = self.first, self.second, p.stride[0]
        return (
            p.groups == p.ic == p.oc == second.k and second.groups == 1
            and p.kh == p.kw and p.kh in Dots.KERNELS and p.stride == (stride, stride)
            and stride in Dots.STRIDES and p.dilation == (1, 1) and p.n * p.oh * p.ow > 0
            and {first.arithmetic.out, second.arithmetic.out} == {"q8to"} and first.form == second.form
            and first.arithmetic.after.kind != ADD
        )  # fmt: skip

    @cached_property
    def sums_rows(self) -> bool:
        return self.second.row_sums or self.second.form == "u8u8"

    def tile(self, p: Conv2dProblem) -> PairTile | None:
        """The one that takes the least time, as far as `_cycles` tells; None where the device takes none."""
        return min(self.tiles(p), key=lambda tile: self._cycles(p, tile), default=None)

    def tiles(self, p: Conv2dProblem) -> Iterator[PairTile]:
        """Those that the device can take, by invocations, columns, and how many share a sum."""
        m4, n4 = p.n * p.oh * ceil4(p.ow), self.second.n4
        columns = sorted({min(n4, most) for most in COLUMNS})
        for invocations, wide, split in itertools.product(INVOCATIONS, columns, SPLITS):
            high = min(m4, invocations // (wide * split))
            tile = PairTile(high, wide, split)
            if high and 2 * tile.blocks * split > invocations and self.takes(p, tile):
                yield tile

    def _cycles(self, p: Conv2dProblem, tile: PairTile) -> float:
        """About how long it takes: instructions of an invocation, one after the other, where the device has
        cores to spare, and of a core's share of the workgroups where it has not."""
        invocations, k4 = _whole(tile.blocks * tile.split, 32), self.second.k4
        groups = -(-p.n * p.oh * ceil4(p.ow) // tile.m4) * -(-self.second.n4 // tile.n4)
        rounds = -(-tile.m4 * k4 // invocations)
        each = rounds * 16 * p.kh * p.kw + -(-k4 // tile.split) * 40 + 8 * tile.split + 200
        lanes, cores = 64, profile(self.device.capabilities).multiprocessors
        return max(WAIT * each, each * invocations / lanes * max(1.0, groups / cores))

    def takes(self, p: Conv2dProblem, tile: PairTile) -> bool:
        """Whether the device has room for a tile, and float lanes hold its sums."""
        if self.second.form == "float" and -(-self.second.k4 // tile.split) > FLOAT_WORDS:
            return False
        variant = self._variant()
        constants = variant.constants(self._constants(p, tile, False))
        return not refusals(variant, constants, self.device.capabilities)

    def _variant(self) -> Variant:
        return catalog().find(SHADER, dot=self.first.form)

    def _constants(self, p: Conv2dProblem, tile: PairTile, blocked: bool) -> dict[str, Constant]:
        first, second = self.first, self.second
        vectors = _whole(tile.vectors(second.k4, self.sums_rows), SMALLEST)
        return {
            "LOCAL_X": _whole(tile.blocks * tile.split, 32), "BLOCKED": blocked,
            "KERNEL": p.kh, "STRIDE": p.stride[0], "TILE": vectors, "ROW_SUMS1": first.row_sums,
            "ROW_SUMS": second.row_sums, "TABLE1": first.arithmetic.after.kind == TABLE,
            **second.arithmetic.after.constants,
        }  # fmt: skip

    def build(self, b: Builder, p: Conv2dProblem, tile: PairTile, x: Value, y: Value) -> None:
        """Adds the dispatch: *p* is the first convolution, x and y have one layout."""
        first, second = self.first, self.second
        between = first.arithmetic.epilogue
        push: dict[str, int | float] = {
            "images": p.n, "h": p.h, "w": p.w, "oh": p.oh, "ow": p.ow, "pad_t": p.padding[0],
            "pad_l": p.padding[1], "x_zero_point": first.arithmetic.x_zero_point, "k4": second.k4,
            "n4": second.n4, "tile_m4": tile.m4, "tile_n4": tile.n4, "split": tile.split,
            "zero_point1": between["y_zero_point"], "min1": between["y_min"], "max1": between["y_max"],
            **second.arithmetic.epilogue,
        }  # fmt: skip
        constants = self._constants(p, tile, x.spec.layout == BLOCKED)
        known = [self._dots.by_columns(1, p.stride[0]), self._dots.parameters, second.weights]
        slots = [x, *map(b.constant, known), b.constant(second.parameters), y]
        program = self.device.program(self._variant(), constants)
        b.dispatch(program, slots, push, self.macs(p, tile), second.arithmetic.after.in_place)

    def macs(self, p: Conv2dProblem, tile: PairTile) -> int:
        """Multiply-adds, with those of the first that workgroups beside each other make again."""
        blocks, again = p.n * p.oh * ceil4(p.ow), -(-self.second.n4 // tile.n4)
        return 16 * blocks * self.second.k4 * (again * 4 * p.kh * p.kw + 4 * self.second.n4)
