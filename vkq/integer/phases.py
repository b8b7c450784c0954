"""Strided and dilated correlations as plain correlations on rearranged images, one axis at a time.

Output o reads the positions ``o*s + k*d - pad`` for the taps k. Divide s and d by their common divisor g;
with o = r + d*m and k = s*a + b (r < d, b < s) the position is ``g*s*d * (m + a) + g*(s*r + d*b) - pad``: for
each residue r and each phase b, a plain correlation over the sub-image of every (g*s*d)-th position. Residues
are independent images; phases are summed, like channels. No position is stored twice, because s and d have no
common divisor.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis of a correlation: image size, taps, outputs, stride, dilation and padding. *pad* may be
    negative (the image is cropped)."""

    size: int
    taps: int
    out: int
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    @property
    def common(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def residues(self) -> int:
        """The number of independent sub-images of the outputs."""
        return min(self.dilation // self.common, self.out)

    @property
    def phases(self) -> int:
        """The number of sub-images that are summed for one output."""
        return min(self.stride // self.common, self.taps)

    @property
    def plain_out(self) -> int:
        """The outputs of each residue (the last ones of some residues may be unused)."""
        return -(-self.out // (self.dilation // self.common))

    @property
    def plain_taps(self) -> int:
        """The taps of each phase (the last one of some phases may be zero)."""
        return -(-self.taps // (self.stride // self.common))

    @property
    def step(self) -> int:
        return self.stride * self.dilation // self.common

    def start(self, residue: int, phase: int) -> int:
        """Return the image position of a sub-image's element 0; negative in the padding."""
        return self.stride * residue + self.dilation * phase - self.pad

    def stored(self) -> tuple[int, int]:
        """The sub-image elements [first, last) that hold image data in at least one residue and phase."""
        starts = [self.start(r, b) for r in range(self.residues) for b in range(self.phases)]
        length = self.plain_out + self.plain_taps - 1
        first = min(max(0, -(start // self.step)) for start in starts)
        last = max(min(length, -((start - self.size) // self.step)) for start in starts)
        return (first, last) if last > first else (0, 0)

    def band(self, first: int, last: int) -> Axis:
        """Return the axis of outputs [first, last) of the whole image."""
        return dataclasses.replace(self, out=last - first, pad=self.pad - first * self.stride)

    def part(self, first: int, last: int) -> tuple[slice, Axis]:
        """Return, for outputs [first, last), the part of the image that they read, and its axis."""
        low = first * self.stride - self.pad
        high = (last - 1) * self.stride + (self.taps - 1) * self.dilation + 1 - self.pad
        begin, end = min(max(low, 0), self.size), max(min(high, self.size), 0)
        if end <= begin:
            begin = end = 0
        return slice(begin, end), Axis(
            end - begin, self.taps, last - first, self.stride, self.dilation, begin - low
        )


def pack_taps(w: npt.NDArray[Any], rows: Axis, columns: Axis) -> npt.NDArray[Any]:
    """Return w (T, C, KH, KW) as (T, C, Ph, Pw, KH', KW'); missing taps of a phase are zero."""
    t, c = w.shape[:2]
    if (rows.phases, columns.phases) == (1, 1) and (rows.plain_taps, columns.plain_taps) == w.shape[2:]:
        return w.reshape(t, c, 1, 1, *w.shape[2:])
    out = np.zeros((t, c, rows.phases, columns.phases, rows.plain_taps, columns.plain_taps), w.dtype)
    for ph, pw in np.ndindex(rows.phases, columns.phases):
        taps = w[:, :, ph :: rows.stride // rows.common, pw :: columns.stride // columns.common]
        out[:, :, ph, pw, : taps.shape[2], : taps.shape[3]] = taps
    return out
