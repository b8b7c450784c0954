"""Rewrite a correlation with stride and dilation as plain correlations (without them) on sub-images,
separately for each axis.

Output o reads, for each tap k, the position ``o*stride + k*dilation - pad``. Let

    g = greatest common divisor of stride and dilation
    s = stride / g,  d = dilation / g
    o = r + d*m,  k = s*a + b            with residue r < d and phase b < s

Then the position is ``g*s*d * (m + a) + g*(s*r + d*b) - pad``. So each pair of a residue r and a phase b
gives a plain correlation over a sub-image: every (g*s*d)-th position.

The results of residues are independent, like those of images. The results of phases are added, like those
of channels. No position is in two sub-images, because s and d have no common divisor.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis of a correlation."""

    size: int  # of the image
    taps: int  # number of taps
    out: int  # number of outputs
    stride: int = 1
    dilation: int = 1
    pad: int = 0  # padding before the image; a negative number crops the image

    @property
    def common(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def residues(self) -> int:
        """The number of residues: sub-images with independent outputs."""
        return min(self.dilation // self.common, self.out)

    @property
    def phases(self) -> int:
        """The number of phases: sub-images whose results are added for each output."""
        return min(self.stride // self.common, self.taps)

    @property
    def plain_out(self) -> int:
        """The number of outputs of each residue. Some residues do not use the last output."""
        return -(-self.out // (self.dilation // self.common))

    @property
    def plain_taps(self) -> int:
        """The number of taps of each phase. The last tap of some phases is padding (0)."""
        return -(-self.taps // (self.stride // self.common))

    @property
    def step(self) -> int:
        return self.stride * self.dilation // self.common

    def start(self, residue: int, phase: int) -> int:
        """Return the position in the image of element 0 of a sub-image; negative in the padding."""
        return self.stride * residue + self.dilation * phase - self.pad

    def stored(self) -> tuple[int, int]:
        """Return (first, last): the elements [first, last) of a sub-image are stored. All other elements
        are padding in every sub-image."""
        starts = [self.start(r, b) for r in range(self.residues) for b in range(self.phases)]
        length = self.plain_out + self.plain_taps - 1
        first = min(max(0, -(start // self.step)) for start in starts)
        last = max(min(length, -((start - self.size) // self.step)) for start in starts)
        return (first, last) if last > first else (0, 0)

    def band(self, first: int, last: int) -> Axis:
        """Return the axis with only the outputs [first, last). It reads the whole image."""
        return dataclasses.replace(self, out=last - first, pad=self.pad - first * self.stride)

    def part(self, first: int, last: int) -> tuple[slice, Axis]:
        """Return (slice of the image that the outputs [first, last) read, axis of these outputs over the
        slice)."""
        low = first * self.stride - self.pad
        high = (last - 1) * self.stride + (self.taps - 1) * self.dilation + 1 - self.pad
        begin, end = min(max(low, 0), self.size), max(min(high, self.size), 0)
        if end <= begin:
            begin = end = 0
        return slice(begin, end), Axis(
            end - begin, self.taps, last - first, self.stride, self.dilation, begin - low
        )


def pack_taps(w: npt.NDArray[Any], rows: Axis, columns: Axis) -> npt.NDArray[Any]:
    """Return the taps w (T, C, KH, KW) divided into phases: (T, C, phases of rows, phases of columns, taps
    of rows, taps of columns). Missing taps of a phase are zero."""
    t, c = w.shape[:2]
    if (rows.phases, columns.phases) == (1, 1) and (rows.plain_taps, columns.plain_taps) == w.shape[2:]:
        return w.reshape(t, c, 1, 1, *w.shape[2:])
    out = np.zeros((t, c, rows.phases, columns.phases, rows.plain_taps, columns.plain_taps), w.dtype)
    for ph, pw in np.ndindex(rows.phases, columns.phases):
        taps = w[:, :, ph :: rows.stride // rows.common, pw :: columns.stride // columns.common]
        out[:, :, ph, pw, : taps.shape[2], : taps.shape[3]] = taps
    return out
