"""Six rules that choose a tensor's quantization range from its histogram."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..graph.graph import Array
from .histogram import BINS, Histogram

Range = tuple[float, float]
LEVELS = 256
FACTORS = np.linspace(0.3, 1.0, 36)  # factors by which the full range is scaled to get the candidates


def full_range(found: Histogram) -> Range:
    """Return the range from the smallest to the largest element, extended to contain 0."""
    return min(found.low, 0.0), max(found.high, 0.0)


def percentile(share: float) -> Callable[[Histogram], Range]:
    """Return a rule for a range that excludes the fraction *share* of the elements, half of them at each
    end."""

    def rule(found: Histogram) -> Range:
        low, high = full_range(found)
        return max(low, min(found.quantile(share / 2), 0.0)), min(
            high, max(found.quantile(1 - share / 2), 0.0)
        )

    return rule


def least_squares(found: Histogram) -> Range:
    """Return the range with the smallest mean squared error among the candidates. First both ends of the
    full range are scaled by the same factor. Then the upper end is scaled alone, and then the lower end."""
    low, high = full_range(found)
    best = min(((low * f, high * f) for f in FACTORS), key=lambda r: _error(found, r))
    best = min(((best[0], high * f) for f in FACTORS if high), key=lambda r: _error(found, r), default=best)
    return min(((low * f, best[1]) for f in FACTORS if low), key=lambda r: _error(found, r), default=best)


def entropy(found: Histogram) -> Range:
    """Return the candidate whose 256 levels have the smallest Kullback-Leibler divergence to the histogram,
    as TensorRT's calibrator does."""
    low, high = full_range(found)
    return min(((low * f, high * f) for f in FACTORS), key=lambda r: _divergence(found, r))


RULES: dict[str, Callable[[Histogram], Range]] = {
    "min-max": full_range,
    "99.999 %": percentile(1e-5),
    "99.99 %": percentile(1e-4),
    "99.9 %": percentile(1e-3),
    "least squares": least_squares,
    "entropy": entropy,
}


def step(span: Range) -> tuple[float, int]:
    """Return the int8 scale and the zero point for a range."""
    scale = (span[1] - span[0]) / (LEVELS - 1) or 1.0
    return scale, round(-128 - span[0] / scale)


def _error(found: Histogram, span: Range) -> float:
    scale, zero = step(span)
    return found.noise(scale, zero, -128, 127)


def _divergence(found: Histogram, span: Range) -> float:
    x: Array = found.centres
    counts = found.counts.copy()
    counts[BINS // 2] = 0  # leave out the zeros, which are exact and many after a Relu
    inside = (x >= span[0]) & (x <= span[1])
    if not (counts * inside).any():
        return np.inf
    first, last = int(np.argmax(inside)), BINS - int(np.argmax(inside[::-1]))
    p = counts[first:last].copy()
    p[0] += counts[:first].sum()
    p[-1] += counts[last:].sum()
    level = np.minimum(np.arange(p.size) * LEVELS // p.size, LEVELS - 1)
    kept = counts[first:last]
    filled = kept > 0
    sums = np.bincount(level, kept, LEVELS)
    many = np.bincount(level, filled, LEVELS)
    q = np.where(filled, (sums / np.maximum(many, 1))[level], 0)
    some = (p > 0) & (q > 0)
    lost = p[(p > 0) & (q == 0)].sum()  # clipped elements that are alone in the end bin
    a, b = p[some] / p.sum(), q[some] / max(q.sum(), 1e-300)
    return float((a * np.log(a / b)).sum() + 10 * lost / p.sum())
