"""Measures how close the outputs of a model are to the float model's outputs, for each output and each
channel."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.graph import Array
from .shown import decibels


@dataclasses.dataclass(frozen=True)
class OutputRow:
    """The comparison of one output with the float model, over all samples.

    - snr_db: the signal-to-noise ratio
    - even_db: -20 log10 of the mean over the channels (axis 1) of sqrt(noise / signal), where each channel's
      term is at most 1. All channels count equally, so that large values (box coordinates of 0 to 320) do not
      hide the errors of small values (scores of 0 to 1).
    - channel, channel_db: the worst channel, and its signal-to-noise ratio
    - same: the fraction of rows (or pixels) for which the channel with the largest element is the same in
      both models"""

    name: str
    snr_db: float
    even_db: float
    channel: int
    channel_db: float
    same: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.snr_db:.1f} dB signal to noise ({self.even_db:.1f} dB by channel, worst"
            f" channel {self.channel}: {self.channel_db:.1f} dB), the same largest element in"
            f" {100 * self.same:.1f} %"
        )


class Agreement:
    """Sums that compare two models over samples of any shapes. ``rows()`` returns an `OutputRow` for each
    float output.

    >>> agreement = Agreement(["y"])
    >>> agreement.add([np.float32([[1, 8]])], [np.float32([[1.1, 8]])])
    >>> (row,) = agreement.rows()
    >>> f"{row.snr_db:.1f} {row.even_db:.1f} {row.channel} {row.channel_db:.1f} {row.same:.0%}"
    '38.1 26.0 0 20.0 100%'
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(names)
        self.sums: dict[str, list[Any]] = {}

    def add(self, real: Sequence[Array], got: Sequence[Array]) -> None:
        """Add the outputs for one sample: *real* of the float model, *got* of the other model. Outputs that
        are not float arrays of equal shape are ignored."""
        for name, a, b in zip(self.names, real, got, strict=True):
            if not isinstance(a, np.ndarray) or a.dtype.kind != "f" or not a.size or a.shape != b.shape:
                continue
            x, y = (np.nan_to_num(each.astype(np.float64)) for each in (a, b))
            if x.ndim < 2:
                x, y = x.reshape(-1, 1), y.reshape(-1, 1)
            axes = tuple(i for i in range(x.ndim) if i != 1)
            rows = x.shape if x.shape[1] > 1 else (1, -1)  # one channel: all elements are one row
            same = x.reshape(rows).argmax(1) == y.reshape(rows).argmax(1)
            new = [np.square(x).sum(axes), np.square(x - y).sum(axes), same.sum(), same.size]
            old = self.sums.get(name)
            # The number of channels is dynamic and differs from earlier samples: treat all elements as one
            # channel.
            if old is not None and old[0].shape != new[0].shape:
                old[:2], new[:2] = ([np.atleast_1d(v.sum()) for v in each[:2]] for each in (old, new))
            self.sums[name] = new if old is None else [p + q for p, q in zip(old, new, strict=True)]

    def rows(self) -> list[OutputRow]:
        found = []
        for name, (signal, noise, same, count) in self.sums.items():
            channels = [decibels(float(s), float(n)) for s, n in zip(signal, noise, strict=True)]
            worst = int(np.argmin(channels))
            whole = decibels(float(signal.sum()), float(noise.sum()))
            even = _even(signal, noise)
            found.append(OutputRow(name, whole, even, worst, channels[worst], float(same / count)))
        return found

    def worst(self) -> float:
        """Return the signal-to-noise ratio of the worst output in dB. The ratio of an output is the smaller
        of its ``snr_db`` and its ``even_db``."""
        return min((min(row.snr_db, row.even_db) for row in self.rows()), default=float("inf"))


def _even(signal: Array, noise: Array) -> float:
    """Return `OutputRow.even_db` from the sums of each channel. Channels whose signal is always 0 do not
    count."""
    alive = signal > 0
    ratio = np.sqrt(np.minimum(noise[alive] / signal[alive], 1.0))
    return decibels(1.0, float(ratio.mean() ** 2)) if ratio.size else decibels(0.0, float(noise.sum()))
