"""Strided and dilated correlations as plain correlations on rearranged images, one axis at a time.

Output o reads the positions ``o*s + k*d - pad`` for the taps k, with stride s and dilation d. Divide s and d
by their greatest common divisor g. With o = r + d*m and k = s*a + b (r < d, b < s), the position is ``g*s*d *
(m + a) + g*(s*r + d*b) - pad``. So each residue r and phase b give a plain correlation over a sub-image:
every (g*s*d)-th position. Residues are independent images; phases are summed, like channels. No position is
stored twice, because s and d, divided by g, have no common divisor.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis of a correlation: image size, number of taps and of outputs, stride, dilation and padding. A
    negative *pad* crops the image."""

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
        """The number of residues: independent sub-images of the outputs."""
        return min(self.dilation // self.common, self.out)

    @property
    def phases(self) -> int:
        """The number of phases: sub-images that are summed for an output."""
        return min(self.stride // self.common, self.taps)

    @property
    def plain_out(self) -> int:
        """The number of outputs of each residue. The last output of some residues may be unused."""
        return -(-self.out // (self.dilation // self.common))

    @property
    def plain_taps(self) -> int:
        """The number of taps of each phase. The last tap of some phases may be a zero."""
        return -(-self.taps // (self.stride // self.common))

    @property
    def step(self) -> int:
        return self.stride * self.dilation // self.common

    def start(self, residue: int, phase: int) -> int:
        """Return the image position of element 0 of a sub-image. It is negative in the padding."""
        return self.stride * residue + self.dilation * phase - self.pad

    def stored(self) -> tuple[int, int]:
        """Return (first, last): the elements [first, last) of sub-images that hold image data in at least one
        residue and phase."""
        starts = [self.start(r, b) for r in range(self.residues) for b in range(self.phases)]
        length = self.plain_out + self.plain_taps - 1
        first = min(max(0, -(start // self.step)) for start in starts)
        last = max(min(length, -((start - self.size) // self.step)) for start in starts)
        return (first, last) if last > first else (0, 0)

    def band(self, first: int, last: int) -> Axis:
        """Return the axis for the outputs [first, last) only. The image stays the whole image."""
        return dataclasses.replace(self, out=last - first, pad=self.pad - first * self.stride)

    def part(self, first: int, last: int) -> tuple[slice, Axis]:
        """Return, for the outputs [first, last), the slice of the image that they read, and the axis for this
        slice."""
        low = first * self.stride - self.pad
        high = (last - 1) * self.stride + (self.taps - 1) * self.dilation + 1 - self.pad
        begin, end = min(max(low, 0), self.size), max(min(high, self.size), 0)
        if end <= begin:
            begin = end = 0
        return slice(begin, end), Axis(
            end - begin, self.taps, last - first, self.stride, self.dilation, begin - low
        )


def pack_taps(w: npt.NDArray[Any], rows: Axis, columns: Axis) -> npt.NDArray[Any]:
    """Return the taps w (T, C, KH, KW) divided into phases, (T, C, Ph, Pw, KH', KW'). Missing taps of a phase
    are zero."""
    t, c = w.shape[:2]
    if (rows.phases, columns.phases) == (1, 1) and (rows.plain_taps, columns.plain_taps) == w.shape[2:]:
        return w.reshape(t, c, 1, 1, *w.shape[2:])
    out = np.zeros((t, c, rows.phases, columns.phases, rows.plain_taps, columns.plain_taps), w.dtype)
    for ph, pw in np.ndindex(rows.phases, columns.phases):
        taps = w[:, :, ph :: rows.stride // rows.common, pw :: columns.stride // columns.common]
        out[:, :, ph, pw, : taps.shape[2], : taps.shape[3]] = taps
    return out
