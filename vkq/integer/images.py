"""Images on a device. Their elements are packed into digits, which the correlation shaders read."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layout.extent import MATRIX, Spec, layout_number
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from .digits import Digits
from .phases import Axis

Shape4 = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class Images:
    """Images (N, C, H, W) on a device."""

    shape: Shape4
    dtype: str
    spec: Spec  # the buffer: a tensor in its layout, or 32-bit words of the elements in row-major order

    @classmethod
    def of_array(cls, x: npt.NDArray[Any]) -> Images:
        """Return the description of an array whose bytes are uploaded without a change (`words`)."""
        n, c, h, w = x.shape
        return cls((n, c, h, w), x.dtype.name, Spec((-(-x.nbytes // 4),), "int32"))

    @property
    def bits(self) -> int:
        return 8 * np.dtype(self.dtype).itemsize

    def constants(self) -> dict[str, int | bool]:
        """Return the specialization constants for reading the images."""
        signed = np.dtype(self.dtype).kind == "i"
        if self.spec.packed is None:
            return {"LAYOUT": -1, "BITS": self.bits, "SIGNED": signed}
        folded = 0 if not self.spec.folded else 1 if self.spec.layout == MATRIX else 2
        return {
            "LAYOUT": layout_number(self.spec.layout), "BITS": 8, "SIGNED": signed, "FOLDED": folded,
        }  # fmt: skip


def words(x: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return the bytes of an array as int32 words, with zeros after the last byte."""
    raw = np.ascontiguousarray(x, x.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    if raw.size % 4:
        raw = np.concatenate((raw, np.zeros(-raw.size % 4, np.uint8)))
    return raw.view("<i4")


@dataclasses.dataclass(frozen=True)
class Stored:
    """The stored part of each sub-image (`vkq.integer.phases`): its size, its first row, and the first word
    of a row."""

    x_rows: int
    x_words: int
    x_first_row: int
    x_first_word: int

    @classmethod
    def of(cls, rows: Axis, columns: Axis, lanes: int) -> Stored:
        first_row, last_row = rows.stored()
        first, last = columns.stored()
        first_word, last_word = first // lanes, -(-last // lanes)
        return cls(max(last_row - first_row, 1), max(last_word - first_word, 1), first_row, first_word)

    def words(self, images: int, channels: int, rows: Axis, columns: Axis) -> int:
        """Return the number of words of the packed images, for one digit."""
        planes = rows.residues * columns.residues * rows.phases * columns.phases
        return images * channels * planes * self.x_rows * self.x_words


@dataclasses.dataclass(frozen=True)
class Part:
    """The images that a kernel processes at once: *count* of the *images*, from index *first* on."""

    images: Images
    first: int
    count: int
    rows: Axis  # the vertical axis of the images
    columns: Axis  # the horizontal axis of the images

    def stored(self, digits: Digits) -> Stored:
        """Return the stored part of each sub-image. *digits*: their width determines the number of elements
        in a word."""
        return Stored.of(self.rows, self.columns, 32 // digits.bits)

    def words(self, digits: Digits) -> int:
        """Return the number of words of the packed images, for all digits."""
        channels = self.images.shape[1]
        return digits.count * self.stored(digits).words(self.count, channels, self.rows, self.columns)


def pack(b: Builder, x: Value, part: Part, digits: Digits) -> Value:
    """Add a step to a plan that packs the images of *part* into digits. Return the packed images."""
    images, channels, h, w = part.images.shape
    stored, y = part.stored(digits), b.words(part.words(digits))
    push = {
        "words": y.bytes // 4 // digits.count, "digits": digits.count, "least": signed_word(digits.least),
        "images": images, "channels": channels, "h": h, "w": w, "first_image": part.first,
        "rows": stored.x_rows, "row_words": stored.x_words, "first_row": stored.x_first_row,
        "first_word": stored.x_first_word,
    }  # fmt: skip
    for name, axis in (("h", part.rows), ("w", part.columns)):
        push |= {
            f"residues_{name}": axis.residues, f"phases_{name}": axis.phases, f"stride_{name}": axis.stride,
            f"dilation_{name}": axis.dilation, f"pad_{name}": axis.pad, f"step_{name}": axis.step,
        }  # fmt: skip
    program = b.device.program(
        catalog().find("integer_pack__word"), {**part.images.constants(), "DIGIT_BITS": digits.bits}
    )
    b.dispatch(program, [x, y], push, y.bytes)
    return y


def fill_word(digits: Digits) -> int:
    """Return a word with the digits of padding (the number 0): byte i is digit i, or a digit of 16 bits is
    the word."""
    values = digits.of_zero()
    if digits.bits == 16:
        return values[0]
    return signed_word(sum((d & 255) << (8 * i) for i, d in enumerate(values)))


def signed_word(value: int) -> int:
    """Return the int32 that equals *value* modulo 2**32."""
    word = value % 2**32
    return word - 2**32 if word >= 2**31 else word
