"""The distribution of a tensor's elements over many samples: a histogram whose range grows, and the
quantization noise that a scale would cause."""

from __future__ import annotations

import numpy as np

from ..graph.graph import Array

# Number of bins over [-limit, limit]. A range without negative values may cover only a quarter of the bins;
# even then, each of its 256 quantization steps has 8 bins.
BINS = 8192


CHUNK = 1 << 20  # number of elements that are counted at a time, so that copies stay small


class Histogram:
    """Counts of a tensor's elements in bins over ``[-limit, limit]``. The limit doubles until all elements
    fit.

    NaN and infinities are ignored. ``low`` and ``high`` are the smallest and the largest element.

    >>> histogram = Histogram()
    >>> histogram.add(np.float32([-1, 0, 3]))
    >>> histogram.low, histogram.high, int(histogram.counts.sum())
    (-1.0, 3.0, 3)
    """

    def __init__(self) -> None:
        self.low, self.high, self.limit = np.inf, -np.inf, 0.0
        self.counts = np.zeros(BINS)

    def add(self, array: Array) -> None:
        flat = array.reshape(-1)
        for at in range(0, flat.size, CHUNK):
            self._add(flat[at : at + CHUNK])

    def _add(self, values: Array) -> None:
        values = values[np.isfinite(values)]
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(-low, high, 2.0**-100)
        if not self.limit:
            self.limit = float(2.0 ** np.ceil(np.log2(largest)))
        while self.limit < largest:
            middle = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.pad(middle, BINS // 4)
            self.limit *= 2
        at = (values / np.float32(self.limit) + 1) * np.float32(BINS / 2)
        self.counts += np.bincount(np.clip(at.astype(np.int64), 0, BINS - 1), minlength=BINS)

    @property
    def centres(self) -> Array:
        """The centre of each bin, (BINS,)."""
        return np.asarray((np.arange(BINS) + 0.5) * (2 * self.limit / BINS) - self.limit)

    def noise(self, scale: float, zero_point: int, qmin: int, qmax: int) -> float:
        """Return the mean squared error that quantization with these parameters causes. Each element counts
        as the centre of its bin. Elements of the bin that begins at 0 count as 0, which has no error."""
        used = np.flatnonzero(self.counts)
        if not used.size:
            return 0.0
        x, counts = self.centres[used], self.counts[used]
        # the bin BINS // 2 begins at 0, and most of its elements are zeros
        x = np.where(used == BINS // 2, 0.0, x)
        near = (np.clip(np.rint(x / scale) + zero_point, qmin, qmax) - zero_point) * scale
        return float(np.square(near - x) @ counts / counts.sum())

    def clipped(self, low: float, high: float) -> float:
        """Return the fraction of elements outside the range [low, high]. Elements that are outside by less
        than one bin may count as inside."""
        step = 2 * self.limit / BINS
        outside = (self.centres < low - step) | (self.centres > high + step)
        return float(self.counts[outside].sum() / max(self.counts.sum(), 1))

    def quantile(self, share: float) -> float:
        """Return the value below which the fraction *share* of the elements lies."""
        total = np.cumsum(self.counts)
        at = int(np.searchsorted(total, share * total[-1]))
        return float(np.clip(self.centres[min(at, BINS - 1)], self.low, self.high))
