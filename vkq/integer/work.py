"""The computation of an integer correlation: its arithmetic, its sizes, and the division of its reduction
among workgroups."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .digits import Digits, digits_for

INVOCATIONS = 64
TILE_WORDS = 2048  # number of words in shared memory, both for the image tile and for the template tile
# maximum loop iterations of an invocation in a dispatch, because drivers may abort longer loops
LONGEST = 60_000
STEP_WORDS = 256  # maximum words of a window in one step, for which no sum of a float lane exceeds 2**24
FLUSH_WIDE, FLUSH_FLOAT, NEVER = (
    4096,
    256,
    2**32 - 1,
)  # words after which a sum is flushed: 4096 * 4 * 255**2 < 2**31, and 256 * 4 * 2**14 = 2**24
LOCAL_SIZES = ((16, 4), (4, 16), (64, 1), (1, 64))  # few choices, because each needs its own pipeline
BAND_BYTES = 60 << 20  # maximum scratch memory; more work is divided into bands of images and rows
Range = tuple[int, int]
TEMPLATES = {"one": 1, "four": 4, "eight": 8}


@dataclasses.dataclass(frozen=True)
class DigitArithmetic:
    """The arithmetic of the sums: the form of the shader (a form of the dot product, or ``mul32``), the
    digits of x and w, and True (``wide``) if sums have 64 bits."""

    form: str
    x: Digits
    w: Digits
    wide: bool

    def __str__(self) -> str:
        return f"x as {self.x}, w as {self.w}, multiplied as {self.form}"

    @property
    def word_taps(self) -> int:
        """The number of taps in one word of a template."""
        return 1 if self.form == "mul32" else 4

    @property
    def x_shift(self) -> int:
        """The number that the kernel adds to x: 128 for each digit if the form has unsigned digits of x."""
        return 128 * self.x.ones if self.form in ("u8s8", "u8u8") else 0

    @property
    def w_offset(self) -> int:
        """The factor by which window sums of the shifted x are multiplied in the result."""
        return self.w.offset - (128 * self.w.ones if self.form == "u8u8" else 0)

    @property
    def flush_words(self) -> int:
        return FLUSH_FLOAT if self.form == "float" else FLUSH_WIDE if self.wide else NEVER

    def constants(self, w: npt.NDArray[Any], bias: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the constants of the shader as (low, high) words modulo 2**64. The first are bias +
        (x_offset - x_shift) * sum w of each template, and the last is w_offset."""
        sums = w.reshape(len(w), -1).sum(axis=1, dtype=np.int64)
        factor = np.uint64((self.x.offset - self.x_shift) % 2**64)
        numbers = bias.astype(np.uint64) + sums.astype(np.uint64) * factor
        found = np.append(numbers, np.uint64(self.w_offset % 2**64))
        return np.asarray(found.astype("<u8").view("<i4").reshape(-1, 2))


def arithmetic(x_range: Range, w_range: Range, wide: bool, form: str) -> DigitArithmetic:
    """Return the cheapest exact arithmetic with the form *form* for values in these ranges.

    The form "float" uses 32-bit multiplies for two 16-bit values, because one multiply is cheaper than the
    float products of four pairs of digits.
    """
    multiplied = multiplies(x_range, w_range, wide) if form == "float" else None
    return multiplied or DigitArithmetic(form, digits_for(*x_range), digits_for(*w_range), wide)


def multiplies(x_range: Range, w_range: Range, wide: bool) -> DigitArithmetic | None:
    """Return the arithmetic of one 32-bit multiply for each product, which is exact modulo 2**32. Return None
    if sums need 64 bits, if both operands fit 8 bits, or if one needs more than 16 bits."""
    x, w = digits_for(*x_range, bits=16), digits_for(*w_range, bits=16)
    narrow = digits_for(*x_range).count == digits_for(*w_range).count == 1
    return None if wide or narrow or x.count > 1 or w.count > 1 else DigitArithmetic("mul32", x, w, wide)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a plain correlation (`phases`): templates and channels of one group, window (kh, kw) and
    result (oh, ow)."""

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
        """True if results are one pixel wide. Then the four pixels of an invocation form a column."""
        return self.ow == 1

    def words(self, how: DigitArithmetic) -> int:
        """Return the number of words in a row of a template."""
        return -(-self.kw // how.word_taps)

    @staticmethod
    def block_of(templates: int) -> str:
        """Return the number of templates for each invocation, as a key of `TEMPLATES`. It is the cheapest
        choice if loading an image word costs as much as two templates."""
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
        """The workgroup size (across, down) that leaves the fewest pixels unused."""
        if self.column:
            return 1, INVOCATIONS
        return min(LOCAL_SIZES, key=lambda size: math.prod(self.tiles(size)))

    def tiles(self, local: tuple[int, int]) -> tuple[int, int]:
        """Return the number of workgroups (across, down) with the workgroup size *local*."""
        width, height = (1, 4 * local[1]) if self.column else (4 * local[0], local[1])
        return -(-self.ow // width), -(-self.oh // height)


def step_size(shape: Sizes, how: DigitArithmetic, most_words: int) -> tuple[int, int, int]:
    """Return the part of the window (channels, rows, words) in one step: the largest that shared memory and
    *most_words* allow."""
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
    """Return the size of the parts if *total* is divided into the fewest equal parts of at most *most*."""
    return -(-total // -(-total // most))


@dataclasses.dataclass(frozen=True)
class Place:
    """The position of a plain correlation's results in the whole result.

    The correlation computes *residues* (vertical, horizontal) sub-images of each image of the result.
    Interleaved, the sub-images form an image of *rows* x *columns*. *first* is the index of the first
    element, *channels* the number of all templates, and *plane* the number of elements between the results of
    consecutive templates."""

    residues: tuple[int, int]
    first: int
    rows: int
    columns: int
    channels: int
    plane: int

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
    """The division of the reduction into steps of a *block* (channels, rows, words), and the number of steps
    for each workgroup, which is small enough that the device gets enough workgroups."""

    tiles: tuple[int, int]
    block: tuple[int, int, int]
    steps: int
    per_split: int
    macs: int

    @classmethod
    def of(cls, s: Sizes, how: DigitArithmetic, busy: int) -> Division:
        """Return the division for a device that is fully used by *busy* workgroups."""
        tiles = s.tiles(s.local)
        alone = tiles[0] * tiles[1] * s.blocks * s.groups * s.images
        pairs = how.x.count * how.w.count
        words = s.channels * s.kh * s.words(how)
        wanted = max(1, busy // alone)
        block = step_size(s, how, max(8, min(STEP_WORDS, pairs * words // wanted)))
        steps = pairs * -(-s.channels // block[0]) * -(-s.kh // block[1]) * -(-s.words(how) // block[2])
        macs = pairs * words * how.word_taps * alone * INVOCATIONS * 4 * TEMPLATES[s.block]
        # The number of loop iterations in one step (correlate.yaml).
        rounds = 2 * block[0] * (block[1] * (block[2] + 2) + 2) + 512
        return cls(tiles, block, steps, max(1, min(steps // wanted, LONGEST // rounds)), macs)

    @property
    def splits(self) -> int:
        """The number of workgroups that add to each result."""
        return -(-self.steps // self.per_split)

    @property
    def push(self) -> dict[str, int | float]:
        """Return the push constants of the division."""
        return {
            "tiles_x": self.tiles[0], "tiles_y": self.tiles[1], "splits": self.splits, "steps": self.steps,
            "steps_per_split": self.per_split, "channel_block": self.block[0], "row_block": self.block[1],
            "word_block": self.block[2],
        }  # fmt: skip
