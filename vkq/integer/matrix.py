"""The exact integer correlation on matrix units: pack templates for the shader, choose tiles, and add the
dispatches to a plan."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..device.profiles import Profile, profile
from ..probe.matrices import Matrices, advertised, counted
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .digits import digits_for
from .images import Part, fill_word, pack
from .work import DigitArithmetic, Place, Range, Sizes

SHADER = "integer_correlate__coopmat"
RUN = 16  # number of window columns in a word of a tile, and of elements along K in a run of packed templates
MOST_WORDS = 8  # maximum number of words in each window row of a chunk
MOST_AT_ONCE = 8  # maximum number of parts that combine.comp loads before it adds them


def arithmetic(x_range: Range, w_range: Range, wide: bool, capabilities: Capabilities) -> DigitArithmetic:
    """Return the arithmetic of the digits on the device's matrices, which are signed or unsigned. Prefer
    matrices with which templates need no offset."""
    x, w = digits_for(*x_range), digits_for(*w_range)
    forms = list(dict.fromkeys(matrices.form for matrices in advertised(capabilities)))
    ways = [DigitArithmetic(form, x, w, wide) for form in forms]
    return next((how for how in ways if how.w_offset == 0), ways[0])


@dataclasses.dataclass(frozen=True)
class MatrixTiles:
    """The division of a correlation among workgroups. A chunk is the *rows* x *words* of a window that are
    summed at once."""

    variant: Variant  # the tile
    matrices: Matrices  # the shape of the tile's matrices
    rows: int
    words: int
    chunks: int  # number of chunks of all channels together
    chunks_per_part: int  # chunks that a workgroup sums; few enough for sums in int32

    def __str__(self) -> str:
        return (
            f"matrices of {self.matrices}, a tile of {self.variant.axes['tile']}, {self.rows} lines x"
            f" {self.words * RUN} columns of the window at a time, in {self.splits} parts"
        )

    @property
    def tile(self) -> tuple[int, int, int]:
        """The size of a tile: (result rows, result columns, columns of the matrix product)."""
        d = self.variant.sizes
        return int(d["TH"]), int(d["TW"]), int(d["BN"])

    @property
    def splits(self) -> int:
        return -(-self.chunks // self.chunks_per_part)

    @property
    def steps(self) -> int:
        """The number of steps along K in a chunk, rounded up to a multiple of the unrolled steps TURNS."""
        bk, turns = (int(self.variant.sizes[name]) for name in ("BK", "TURNS"))
        return -(-self.rows * self.words * RUN // (bk * turns)) * turns

    @property
    def constants(self) -> dict[str, Constant]:
        return {**self.matrices.constants(self.variant), "ROWS": self.rows, "WORDS": self.words}

    def tiles(self, s: Sizes) -> tuple[int, int]:
        return -(-s.oh // self.tile[0]), -(-s.ow // self.tile[1])

    def columns(self, columns: int) -> int:
        """Round a number of columns of the matrix product up to whole tiles."""
        return -(-columns // self.tile[2]) * self.tile[2]


def column_count(templates: int, how: DigitArithmetic) -> int:
    """Return the number of columns of the matrix product: for each digit of w, one for each template,
    rounded up to a multiple of 4. One more column, of ones, gives window sums if they are needed."""
    return 4 * (-(-templates // 4)) * how.w.count + (how.w_offset != 0)


def tilings(s: Sizes, how: DigitArithmetic, capabilities: Capabilities) -> Iterator[MatrixTiles]:
    """Yield all tilings that the device can run: none if loops in shaders with matrices need literal trip
    counts (`counted`)."""
    if counted(capabilities):
        return
    words_all = -(-s.kw // RUN)
    words = -(-words_all // -(-words_all // MOST_WORDS))
    largest = 255 * 255 if how.form == "u8u8" else 128 * 128
    for variant, matrices in itertools.product(catalog().shaders[SHADER].variants, advertised(capabilities)):
        if variant.axes["dot"] != how.form or matrices.form != how.form or not _fits(variant, matrices):
            continue
        for rows in sorted({-(-s.kh // blocks) for blocks in range(1, s.kh + 1)}):
            chunks = s.channels * -(-s.kh // rows) * -(-words_all // words)
            most = (2**31 - 1) // (largest * rows * words * RUN)
            if not most or not matrices.runs(variant, capabilities, ROWS=rows, WORDS=words):
                continue
            for parts in sorted({-(-chunks // count) for count in range(1, min(chunks, 64) + 1)}):
                if parts <= most:
                    yield MatrixTiles(variant, matrices, rows, words, chunks, parts)


def _fits(variant: Variant, matrices: Matrices) -> bool:
    """Return True if the tile can be divided among subgroups into whole matrices and whole columns of
    pixels."""
    found = matrices.constants(variant)
    th, tw, bn = (int(variant.sizes[name]) for name in ("TH", "TW", "BN"))
    down, across = int(found["WGM"]), int(found["WGN"])
    if not (down and across):
        return False
    sm, sn = th * tw // down, bn // across
    return sm % th == 0 and sn > 0 and sn % matrices.m == 0 and th % matrices.n == 0


def cost(t: MatrixTiles, s: Sizes, how: DigitArithmetic, known: Profile) -> float:
    """Return the estimated cycles of one multiprocessor for its workgroups and for adding the parts."""
    th, tw, bn = t.tile
    columns = t.columns(column_count(s.templates, how))
    places = math.prod(t.tiles(s)) * th * tw * s.images * s.groups
    workgroups = places // (th * tw) * (columns // bn) * how.x.count * t.splits
    each = max(workgroups / known.multiprocessors, 1)
    costs = known.integer_costs
    alone, together = known.integer_tile_cycles[t.variant.axes["tile"]]
    kib = tw * (th + t.rows - 1) * (t.words | 1) / 64
    chunk = t.steps * max(alone, together * each) + kib * costs["chunk"] * each
    parts = places * columns * how.x.count * t.splits
    return t.chunks_per_part * chunk + parts / known.multiprocessors * costs["part"]


class Matrix:
    """The kernel on matrix units, with the templates (G, T, C, KH, KW) on the device."""

    def __init__(self, device: Device, taps: npt.NDArray[Any], how: DigitArithmetic, constants: Resident):
        self.device, self.how, self.taps, self._constants = device, how, taps, constants
        self._weights: dict[tuple[int, int, int, int], Resident] = {}
        # A tiling that tests and measurements set here is used for all sizes.
        self.tiling: MatrixTiles | None = None

    def best(self, s: Sizes) -> MatrixTiles | None:
        """Return the tiling with the lowest estimated cost, or None if the device can run no tiling. If
        estimates are equal, prefer the smallest n of the matrices: it was up to 4 % faster than the larger
        n (benchmarks/log.md)."""
        if self.tiling is not None:
            return self.tiling
        c = self.device.capabilities

        def make() -> MatrixTiles | None:
            return min(
                tilings(s, self.how, c),
                key=lambda t: (cost(t, s, self.how, profile(c)), t.matrices.n),
                default=None,
            )

        return self.device.plan(("integer_tiling", s, self.how, advertised(c)), make)

    def _chosen(self, s: Sizes) -> MatrixTiles:
        found = self.best(s)
        assert found is not None
        return found

    def _parts_words(self, s: Sizes, t: MatrixTiles) -> int:
        columns = t.columns(column_count(s.templates, self.how))
        places = math.prod(t.tiles(s)) * t.tile[0] * t.tile[1]
        return self.how.x.count * t.splits * s.groups * s.images * places * columns

    def describe(self, s: Sizes) -> str:
        return str(self._chosen(s))

    def cost(self, s: Sizes) -> float:
        """Return the estimated cost. The unit is the time of one multiply-add in `Tiles`."""
        known = profile(self.device.capabilities)
        return (
            cost(self._chosen(s), s, self.how, known) * known.multiprocessors * known.integer_costs["tiles"]
        )

    def numbers(self) -> str:
        return str(self.how)

    def scratch_bytes(self, part: Part, s: Sizes) -> int:
        """Return the bytes of the packed images and of the sums of all parts."""
        return 4 * (part.words(self.how.x) + self._parts_words(s, self._chosen(s)))

    def adds(self, s: Sizes) -> bool:
        """Return False: each part has its own scratch memory, and combine.comp adds the parts."""
        return False

    def build(self, b: Builder, x: Value, part: Part, s: Sizes, y: Value, to: Place) -> None:
        """Add the correlation of images to a plan: pack the images, compute the products of all parts, add
        the parts."""
        how, t = self.how, self._chosen(s)
        tiles_h, tiles_w = t.tiles(s)
        columns = t.columns(column_count(s.templates, how))
        common = {
            "images": s.images, "groups": s.groups, "tiles_h": tiles_h, "tiles_w": tiles_w,
            "columns": columns, "splits": t.splits,
        }  # fmt: skip
        parts = b.words(self._parts_words(s, t))
        row_blocks = -(-s.kh // t.rows)
        program = self.device.program(t.variant, t.constants, t.matrices.subgroup)
        push: dict[str, int | float] = {
            **common, "channels": s.channels, "parts": how.x.count * t.splits,
            "chunks_per_part": t.chunks_per_part, "row_blocks": row_blocks,
            "word_blocks": t.chunks // (s.channels * row_blocks), "steps": t.steps,
            **dataclasses.asdict(part.stored(how.x)), "fill": fill_word(how.x) % 2**32,
        }  # fmt: skip
        weights = b.constant(self._packed(t))
        macs = parts.bytes // 4 * t.chunks_per_part * t.steps * int(t.variant.sizes["BK"])
        b.dispatch(program, [pack(b, x, part, how.x), weights, parts], push, macs)
        combined = {
            **common, **to.push, "quads": -(-s.templates // 4), "group_templates": s.templates,
            "x_digits": how.x.count, "w_digits": how.w.count, "oh": s.oh, "ow": s.ow,
        }  # fmt: skip
        constants: dict[str, Constant] = {
            "TH": t.tile[0], "TW": t.tile[1], "BN": t.tile[2], "WIDE": how.wide,
            "WINDOW_SUMS": how.w_offset != 0,
            "AT_ONCE": -(-t.splits // -(-t.splits // MOST_AT_ONCE)),
        }  # fmt: skip
        program = self.device.program(catalog().find("integer_combine__quad"), constants)
        b.dispatch(program, [parts, b.constant(self._constants), y], combined, parts.bytes // 4)

    def _packed(self, t: MatrixTiles) -> Resident:
        g, templates = self.taps.shape[:2]
        columns = t.columns(column_count(templates, self.how))
        key = t.rows, t.words, t.steps, columns
        if key not in self._weights:
            runs = t.steps * int(t.variant.sizes["BK"]) // RUN
            size = g * t.chunks * runs * columns * RUN
            self._weights[key] = Resident(
                self.device, size, lambda: _words(self.taps, self.how, t, runs, columns)
            )
        return self._weights[key]


def _words(
    taps: npt.NDArray[Any], how: DigitArithmetic, t: MatrixTiles, runs: int, columns: int
) -> npt.NDArray[np.int32]:
    """Pack taps as bytes in the order [group][chunk][run][column][16]. A chunk is a channel, a block of
    rows and a block of words. A run is 16 consecutive bytes along K. Missing taps are zero bytes."""
    g, templates, c, kh, kw = taps.shape
    quads, digits = 4 * -(-templates // 4), how.w.count
    row_blocks = -(-kh // t.rows)
    width = t.chunks // (c * row_blocks) * t.words * RUN
    flip = 128 if how.form == "u8u8" else 0
    found = np.zeros((g, columns, c, row_blocks * t.rows, width), np.uint8)
    values = how.w.of(taps).view(np.uint8) ^ np.uint8(flip)
    for digit in range(digits):
        found[:, digit * quads : digit * quads + templates, :, :kh, :kw] = values[digit]
    if how.w_offset:
        found[:, digits * quads, :, :kh, :kw] = 1
    split = found.reshape(g, columns, c, row_blocks, t.rows, -1, t.words, RUN)
    ordered = split.transpose(0, 2, 3, 5, 4, 6, 1, 7).reshape(g, t.chunks, t.rows * t.words, columns, RUN)
    padded = np.zeros((g, t.chunks, runs, columns, RUN), np.uint8)
    padded[:, :, : t.rows * t.words] = ordered
    return padded.reshape(-1).view("<i4")
