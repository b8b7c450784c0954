"""The arithmetic of an integer correlation, its sizes, and the division of its reduction among workgroups."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .digits import Digits, digits_for

INVOCATIONS = 64  # invocations of a workgroup
TILE_WORDS = 2048  # number of words of shared memory for the image tile, and also for the template tile
# Maximum number of loop iterations of an invocation in a dispatch. Drivers may end longer loops.
LONGEST = 60_000
# Maximum number of words of a window in one step: with at most 256, the sums of float lanes are below
# 2**24.
STEP_WORDS = 256
# The number of words after which a kernel adds its exact partial sum to the total, and sets the partial sum
# to 0.
# - FLUSH_WIDE: int32 partial sums of a 64-bit total; 4096 * 4 * 255**2 < 2**31
# - FLUSH_FLOAT: partial sums of float lanes; 256 * 4 * 2**14 = 2**24
FLUSH_WIDE, FLUSH_FLOAT, NEVER = (
    4096,
    256,
    2**32 - 1,
)
# The workgroup sizes: only a few, because each needs a separate pipeline.
LOCAL_SIZES = ((16, 4), (4, 16), (64, 1), (1, 64))
BAND_BYTES = 60 << 20  # maximum number of bytes of scratch memory; larger work is divided into bands
Range = tuple[int, int]  # the smallest and the largest value
TEMPLATES = {"one": 1, "four": 4, "eight": 8}  # {value of the shader's axis `templates`: number}


@dataclasses.dataclass(frozen=True)
class DigitArithmetic:
    """The arithmetic of the sums."""

    form: str  # a form of the dot product, or mul32 (32-bit multiplies)
    x: Digits
    w: Digits
    wide: bool  # whether sums have 64 bits

    def __str__(self) -> str:
        return f"x as {self.x}, w as {self.w}, multiplied as {self.form}"

    @property
    def word_taps(self) -> int:
        """The number of taps in one word of a template."""
        return 1 if self.form == "mul32" else 4

    @property
    def x_shift(self) -> int:
        """The number that the kernel adds to x: 128 for each digit if the form reads unsigned digits of x,
        else 0."""
        return 128 * self.x.ones if self.form in ("u8s8", "u8u8") else 0

    @property
    def w_offset(self) -> int:
        """The factor of the window sums of the shifted x, which the kernel adds to the result."""
        return self.w.offset - (128 * self.w.ones if self.form == "u8u8" else 0)

    @property
    def flush_words(self) -> int:
        return FLUSH_FLOAT if self.form == "float" else FLUSH_WIDE if self.wide else NEVER

    def constants(self, w: npt.NDArray[Any], bias: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the constants of the shader modulo 2**64, each as two words (low, high): for each template
        bias + (x_offset - x_shift) * sum w; then w_offset."""
        sums = w.reshape(len(w), -1).sum(axis=1, dtype=np.int64)
        factor = np.uint64((self.x.offset - self.x_shift) % 2**64)
        numbers = bias.astype(np.uint64) + sums.astype(np.uint64) * factor
        found = np.append(numbers, np.uint64(self.w_offset % 2**64))
        return np.asarray(found.astype("<u8").view("<i4").reshape(-1, 2))


def arithmetic(x_range: Range, w_range: Range, wide: bool, form: str) -> DigitArithmetic:
    """Return the cheapest exact arithmetic with the form *form*, for values in these ranges.

    If x and w have 16 bits, the result has the form "mul32" instead of "float": one 32-bit multiply is
    cheaper than four float products of digits.
    """
    multiplied = multiplies(x_range, w_range, wide) if form == "float" else None
    return multiplied or DigitArithmetic(form, digits_for(*x_range), digits_for(*w_range), wide)


def multiplies(x_range: Range, w_range: Range, wide: bool) -> DigitArithmetic | None:
    """Return the arithmetic with one 32-bit multiply for each product, exact modulo 2**32. Return None if
    sums need 64 bits, if both operands fit into 8 bits, or if an operand needs more than 16 bits."""
    x, w = digits_for(*x_range, bits=16), digits_for(*w_range, bits=16)
    narrow = digits_for(*x_range).count == digits_for(*w_range).count == 1
    return None if wide or narrow or x.count > 1 or w.count > 1 else DigitArithmetic("mul32", x, w, wide)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a plain correlation (`vkq.integer.phases`): a window of kh x kw taps, and a result of oh
    x ow elements."""

    images: int
    groups: int
    templates: int  # number of templates in a group
    channels: int  # number of channels in a group
    kh: int
    kw: int
    oh: int
    ow: int

    @property
    def column(self) -> bool:
        """True if results are one pixel wide. The four pixels of an invocation are then a column instead of
        a row."""
        return self.ow == 1

    def words(self, how: DigitArithmetic) -> int:
        """Return the number of words in a row of a template."""
        return -(-self.kw // how.word_taps)

    @staticmethod
    def block_of(templates: int) -> str:
        """Return the key of `TEMPLATES` for the number of templates that an invocation computes: the
        cheapest number, if loading a word of the image costs as much as computing two templates."""
        return min(
            TEMPLATES,
            key=lambda name: (-(-templates // TEMPLATES[name]) * (TEMPLATES[name] + 2), -TEMPLATES[name]),
        )

    @property
    def block(self) -> str:
        return self.block_of(self.templates)

    @property
    def blocks(self) -> int:
        return -(-self.templates // TEMPLATES[self.block])

    @property
    def local(self) -> tuple[int, int]:
        """The workgroup size (across, down) whose tiles extend least past the edges of the result."""
        if self.column:
            return 1, INVOCATIONS
        return min(LOCAL_SIZES, key=lambda size: math.prod(self.tiles(size)))

    def tiles(self, local: tuple[int, int]) -> tuple[int, int]:
        """Return the number of workgroups (across, down) of size *local* that cover the result."""
        width, height = (1, 4 * local[1]) if self.column else (4 * local[0], local[1])
        return -(-self.ow // width), -(-self.oh // height)


def step_size(shape: Sizes, how: DigitArithmetic, most_words: int) -> tuple[int, int, int]:
    """Return the part of the window that one step adds, as (channels, rows, words): the largest part that
    fits into shared memory and has at most *most_words* words."""
    local = shape.local
    rows = 4 * local[1] if shape.column else local[1]
    across = local[0] * (4 if how.form == "mul32" else 1)
    words_max = min(most_words, TILE_WORDS // (TEMPLATES[shape.block] * (4 if how.form == "float" else 1)))
    kwords = shape.words(how)

    def fits(channels: int, kh: int, words: int) -> bool:
        line = words | 1 if shape.column else across + words
        return channels * kh * words <= words_max and channels * (rows + kh - 1) * line <= TILE_WORDS

    words = _even(kwords, next(n for n in range(min(kwords, STEP_WORDS), 0, -1) if n == 1 or fits(1, 1, n)))
    kh = _even(
        shape.kh, next(n for n in range(min(shape.kh, STEP_WORDS), 0, -1) if n == 1 or fits(1, n, words))
    )
    if (kh, words) != (shape.kh, kwords):
        return 1, kh, words
    most = next(n for n in range(min(shape.channels, STEP_WORDS), 0, -1) if n == 1 or fits(n, kh, words))
    return _even(shape.channels, most), kh, words


def _even(total: int, most: int) -> int:
    """Return the size of a part if *total* is divided into the fewest equal parts of at most *most*."""
    return -(-total // -(-total // most))


@dataclasses.dataclass(frozen=True)
class Place:
    """The elements of the whole result to which a plain correlation (`vkq.integer.phases`) writes. The
    sub-images of a result image are interleaved to an image of *rows* x *columns*."""

    residues: tuple[int, int]  # the numbers (vertical, horizontal) of sub-images of each result image
    first: int  # the index of the first element
    rows: int
    columns: int
    channels: int  # the number of all templates
    plane: int  # the distance in elements between the results of consecutive templates

    @property
    def push(self) -> dict[str, int | float]:
        """Return the push constants of the block integer_result."""
        return {
            "residues_h": self.residues[0], "residues_w": self.residues[1], "y_first": self.first,
            "y_rows": self.rows, "y_columns": self.columns, "y_channels": self.channels,
            "y_plane": self.plane,
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Division:
    """The division of the reduction (the sum over a window) among workgroups."""

    tiles: tuple[int, int]  # the numbers of workgroups (across, down) that cover the result
    block: tuple[int, int, int]  # the part of the window in a step: (channels, rows, words)
    steps: int  # the number of steps, over all pairs of digits
    per_split: int  # the number of steps of one workgroup; few enough to occupy the device
    macs: int  # the multiply-adds of the dispatch

    @classmethod
    def of(cls, s: Sizes, how: DigitArithmetic, busy: int) -> Division:
        """Return the division for a device that *busy* workgroups keep busy."""
        tiles = s.tiles(s.local)
        alone = tiles[0] * tiles[1] * s.blocks * s.groups * s.images
        pairs = how.x.count * how.w.count
        words = s.channels * s.kh * s.words(how)
        wanted = max(1, busy // alone)
        block = step_size(s, how, max(8, min(STEP_WORDS, pairs * words // wanted)))
        steps = pairs * -(-s.channels // block[0]) * -(-s.kh // block[1]) * -(-s.words(how) // block[2])
        macs = pairs * words * how.word_taps * alone * INVOCATIONS * 4 * TEMPLATES[s.block]
        # The maximum number of loop iterations of an invocation in one step (correlate.yaml).
        rounds = 2 * block[0] * (block[1] * (block[2] + 2) + 2) + 512
        return cls(tiles, block, steps, max(1, min(steps // wanted, LONGEST // rounds)), macs)

    @property
    def splits(self) -> int:
        """The number of workgroups that share the reduction of each result (split-K)."""
        return -(-self.steps // self.per_split)

    @property
    def push(self) -> dict[str, int | float]:
        """Return the push constants of the division."""
        return {
            "tiles_x": self.tiles[0], "tiles_y": self.tiles[1], "splits": self.splits, "steps": self.steps,
            "steps_per_split": self.per_split, "channel_block": self.block[0], "row_block": self.block[1],
            "word_block": self.block[2],
        }  # fmt: skip
