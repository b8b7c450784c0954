"""The exact integer correlation with dot products, float lanes or 32-bit multiplies: pack templates for the
shader, and add the dispatch to a plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.profiles import profile
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from .images import Part, fill_word, pack
from .work import TEMPLATES, DigitArithmetic, Division, Place, Sizes


class Tiles:
    """The kernel without matrix units, with the templates (G, T, C, KH, KW) on the device. The register tile
    of an invocation is four pixels by 1, 4 or 8 templates."""

    def __init__(self, device: Device, taps: npt.NDArray[Any], how: DigitArithmetic, constants: Resident):
        self.device, self.how, self._constants = device, how, constants
        block = Sizes.block_of(taps.shape[1])
        words = _words(taps, how, TEMPLATES[block])
        self._weights = Resident(device, words.nbytes, lambda: words)

    def __str__(self) -> str:
        return "32-bit multiplies" if self.how.form == "mul32" else f"the dot product {self.how.form}"

    def numbers(self) -> str:
        return str(self.how)

    def scratch_bytes(self, part: Part, s: Sizes) -> int:
        """Return the bytes of the packed images."""
        return 4 * part.words(self.how.x)

    def describe(self, s: Sizes) -> str:
        return str(self)

    def cost(self, s: Sizes) -> float:
        """Return the estimated cost. The unit is about the time of one multiply-add of an invocation that
        computes eight templates. A multiply-add costs more with fewer templates."""
        block = TEMPLATES[s.block]
        costs = profile(self.device.capabilities).integer_costs
        each = costs["multiply"] if self.how.form == "mul32" else 1
        return self.work(s).macs * each * (block + 1) / block

    def build(self, b: Builder, x: Value, part: Part, s: Sizes, y: Value, to: Place) -> None:
        """Add the correlation of images to a plan. With `adds`, an earlier step must set *y* to zero."""
        how, work = self.how, self.work(s)
        push: dict[str, int | float] = {
            **work.push, **to.push, "groups": s.groups, "images": s.images, "blocks": s.blocks, "oh": s.oh,
            "ow": s.ow, "group_templates": s.templates, "group_channels": s.channels, "kh": s.kh,
            "kwords": s.words(how), **dataclasses.asdict(part.stored(how.x)), "w_digits": how.w.count,
            "fill": fill_word(how.x), "flush_words": how.flush_words,
        }  # fmt: skip
        constants: dict[str, Constant] = {
            "LOCAL_X": s.local[0], "LOCAL_Y": s.local[1], "COLUMN": s.column, "WIDE": how.wide,
            "WINDOW_SUMS": how.w_offset != 0,
        }  # fmt: skip
        variant = catalog().find("integer_correlate__tiled", dot=how.form, templates=s.block)
        packed = pack(b, x, part, how.x)
        slots = [packed, b.constant(self._weights), b.constant(self._constants), y]
        b.dispatch(self.device.program(variant, constants), slots, push, work.macs)

    def work(self, s: Sizes) -> Division:
        """Return the division of the reduction among workgroups."""
        return Division.of(s, self.how, profile(self.device.capabilities).busy_workgroups)

    def adds(self, s: Sizes) -> bool:
        """Return True if workgroups add to the results, which an earlier step must set to zero."""
        return self.work(s).splits > 1


def _words(taps: npt.NDArray[Any], how: DigitArithmetic, width: int) -> npt.NDArray[np.int32]:
    """Pack taps as words in the order [group][block][digit][channel][ky][word][template of the block]."""
    g, t, c, kh, kw = taps.shape
    blocks, kwords = -(-t // width), -(-kw // how.word_taps)
    padded = np.zeros((g, blocks * width, c, kh, kwords * how.word_taps), taps.dtype)
    # Pad before the conversion to digits: taps past the edge of a template are the number 0, whose digits
    # depend on the offset.
    padded[:, :t, :, :, :kw] = taps
    digits = how.w.of(padded)
    words = digits.astype("<i4") if how.word_taps == 1 else np.ascontiguousarray(digits).view("<i4")
    split = words.reshape(how.w.count, g, blocks, width, c, kh, kwords)
    return np.ascontiguousarray(split.transpose(1, 2, 0, 4, 5, 6, 3))
