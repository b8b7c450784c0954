"""Statistics of times: medians, the ratio of two arms with an exact confidence interval, and signs of bad
samples (drift, outliers). An arm is a path of vkq, or another library.

Times on a shared machine have heavy tails and drift, so no mean or standard deviation is used. The times of
two arms are measured in pairs, one directly after the other. A disturbance of the machine usually slows
both times of a pair, so the ratios of the pairs are compared.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.99  # confidence of a ratio's interval
# Ratios within 2 % of 1 count as equal: other buffer addresses alone change times by 2 %.
FLOOR = 0.02
DRIFT = 0.05  # a larger relative change between the medians of the first and the last fifth gives a warning
OUTLIERS = 0.05  # a larger share of outliers gives a warning
THROTTLED = 0.85  # a warning is given if the rate of the `Sentinel` is below this share of its median


@dataclass(frozen=True)
class Summary:
    """The median, the 20th and the 80th percentile of some samples, and the number of samples."""

    median: float
    p20: float
    p80: float
    count: int


def summarize(samples: Sequence[float]) -> Summary:
    """Return the `Summary` of the samples. There must be at least one sample.

    >>> summarize([1.0, 2.0, 3.0, 4.0, 100.0])
    Summary(median=3.0, p20=1.8, p80=23.2, count=5)
    """
    p20, median, p80 = (
        round(float(v), 6) for v in np.percentile(np.asarray(samples, np.float64), (20, 50, 80))
    )
    return Summary(median, p20, p80, len(samples))


@dataclass(frozen=True)
class Ratio:
    """The ratio of two arms' times, first / second; below 1, the first arm is faster."""

    value: float  # the estimate
    low: float  # the lower end of the confidence interval
    high: float  # its upper end
    pairs: int  # the number of pairs of times

    @property
    def verdict(self) -> str:
        """``slower`` or ``faster`` if the interval excludes 1 and the difference is above `FLOOR`, else
        ``equal``."""
        if abs(math.log(self.value)) < math.log1p(FLOOR) or self.low <= 1 <= self.high:
            return "equal"
        return "slower" if self.value > 1 else "faster"

    @property
    def width(self) -> float:
        """Half the width of the interval, relative to the ratio. Differences below it cannot be detected."""
        return math.sqrt(self.high / self.low) - 1


def paired_ratio(times: Sequence[float], base: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
    """Return the Hodges-Lehmann estimate of the ratio times[i] / base[i]: the median of the geometric means
    of every two ratios.

    The interval is that of the Wilcoxon signed-rank test. It is exact if the logarithms of the ratios are
    distributed symmetrically about their centre. For two equal arms this holds for any noise, because the
    measurements alternate. With too few pairs for the confidence (fewer than eight for 99 %), the interval
    is the range of all means.

    >>> paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]).value
    2.0
    """
    logs = np.log(np.asarray(times, np.float64) / np.asarray(base, np.float64))
    n = len(logs)
    rows, columns = np.triu_indices(n)
    means = np.sort((logs[rows] + logs[columns]) / 2)
    rank = _signed_rank(n, confidence)
    value, low, high = (
        math.exp(v) for v in (float(np.median(means)), means[rank], means[len(means) - 1 - rank])
    )
    return Ratio(round(value, 9), round(low, 9), round(high, 9), n)


@functools.cache
def _signed_rank(n: int, confidence: float) -> int:
    """Return the number of the n(n+1)/2 sorted pairwise means that lie below the confidence interval; the
    same number lies above it."""
    total, tail = n * (n + 1) // 2, (1 - confidence) / 2
    if n > 60:  # the normal approximation is wrong by less than one rank
        spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return max(0, math.floor(total / 2 - _normal_quantile(1 - tail) * spread))
    counts = np.zeros(total + 1)
    counts[0] = 1.0
    for i in range(1, n + 1):  # the distribution of the sum of a random subset of {1..n}
        shifted = np.zeros_like(counts)
        shifted[i:] = counts[:-i]
        counts = (counts + shifted) / 2
    return max(0, int(np.searchsorted(np.cumsum(counts), tail, side="right")) - 1)


def _normal_quantile(p: float) -> float:
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + math.erf(middle / math.sqrt(2))) / 2 < p else (low, middle)
    return low


def median_ratio(times: Sequence[float], base: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Return the ratio of the medians of two separate runs. The interval is bootstrapped: 2,000 resamples,
    with a fixed seed."""
    rng = np.random.default_rng(0)
    resampled = [np.median(_resamples(rng, np.asarray(v, np.float64)), axis=1) for v in (times, base)]
    tail = 50 * (1 - confidence)
    low, high = (float(v) for v in np.percentile(resampled[0] / resampled[1], (tail, 100 - tail)))
    return Ratio(float(np.median(times) / np.median(base)), low, high, min(len(times), len(base)))


def _resamples(rng: np.random.Generator, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return values[rng.integers(0, len(values), (2000, len(values)))]


def drift(samples: Sequence[float]) -> float | None:
    """Return (median of the last fifth / median of the first fifth) - 1; None for fewer than ten samples."""
    fifth = len(samples) // 5
    return None if fifth < 2 else float(np.median(samples[-fifth:]) / np.median(samples[:fifth])) - 1


def outliers(samples: Sequence[float]) -> float:
    """Return the share of outliers: samples more than three interquartile ranges below the lower quartile
    or above the upper quartile."""
    q1, q3 = np.percentile(np.asarray(samples, np.float64), (25, 75))
    reach = 3 * max(q3 - q1, 1e-3 * q3)  # at least 0.3 % of q3, because some clocks have coarse steps
    return float(np.mean([not q1 - reach <= v <= q3 + reach for v in samples]))


def settled(samples: Sequence[float], count: int = 5, within: float = 0.03) -> bool:
    """Return True if the last *count* samples agree: (largest - smallest) <= *within* times their median."""
    last = sorted(samples[-count:])
    return len(last) == count and last[-1] - last[0] <= within * last[count // 2]
