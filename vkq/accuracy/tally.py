"""Sums over samples that compare a value of the float model with the same value of the quantized model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.graph import Array
from .histogram import CHUNK, Histogram


class Tally:
    """Sums over the samples for one value: the signal and the noise of each channel, and totals over all
    elements. If axis 1 is dynamic and the number of channels differs between samples, all channels count as
    one."""

    def __init__(self) -> None:
        self.signal: Any = 0.0
        self.noise: Any = 0.0
        self.own = self.cross = self.other = 0.0
        self.histogram = Histogram()

    def add(self, real: Array, got: Array, own: Array) -> None:
        rows = [_by_channel(each) for each in (real, got, own)]
        step = max(1, CHUNK // len(rows[0]))
        signal: Any = 0.0
        noise: Any = 0.0
        for at in range(0, rows[0].shape[1], step):
            x, y, z = (np.nan_to_num(each[:, at : at + step].astype(np.float64)) for each in rows)
            signal = signal + np.square(x).sum(1)
            noise = noise + np.square(y - x).sum(1)
            self.own += float(np.square(z - x).sum())
            self.cross += float((x * y).sum())
            self.other += float(np.square(y).sum())
        if np.ndim(self.signal) and np.shape(self.signal) != np.shape(signal):
            self.signal, self.noise = np.atleast_1d(np.sum(self.signal)), np.atleast_1d(np.sum(self.noise))
            signal, noise = np.atleast_1d(np.sum(signal)), np.atleast_1d(np.sum(noise))
        self.signal, self.noise = self.signal + signal, self.noise + noise
        self.histogram.add(real)


def _by_channel(array: Array) -> Array:
    """Return an array as (channels, other elements). An array of fewer than two axes has one channel."""
    return np.moveaxis(array, 1, 0).reshape(array.shape[1], -1) if array.ndim > 1 else array.reshape(1, -1)
