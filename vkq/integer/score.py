"""The scores of template matching that need sums of squares, computed on the host from exact sums of
products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .checks import Array, range_of, squares_fit


def score(method: str, a: Array, w: Array, products: npt.NDArray[np.int64]) -> Array:
    """Return the scores (T, OH, OW).

    - *method*: "ssd" or "ccoeff_normed".
    - *a*: the image (C, H, W).
    - *w*: the templates (T, C, h, w).
    - *products*: the sums of products of image and templates."""
    window = w.shape[-2:]
    count = math.prod(w.shape[1:])
    squares_fit("match_template", count, range_of(a), w)
    t = w.reshape(len(w), -1).astype(np.int64)
    t_squares = (t * t).sum(axis=1)[:, None, None]
    squares = _window_sums((a.astype(np.int64) ** 2).sum(axis=0), window)
    if method == "ssd":
        return np.asarray(squares - 2 * products + t_squares)
    t_sums = t.sum(axis=1)[:, None, None]
    sums = _window_sums(a.sum(axis=0, dtype=np.int64), window)
    spread = _centred(squares, sums, sums, count) * _centred(t_squares, t_sums, t_sums, count)
    covariance = _centred(products, sums, t_sums, count)
    safe = np.sqrt(np.where(spread > 0, spread, 1.0))
    return np.asarray(np.clip(np.where(spread > 0, covariance / safe, 0.0), -1.0, 1.0))


def _centred(products: Array, a: Array, b: Array, count: int) -> npt.NDArray[np.float64]:
    """Return sum(a * b) - sum(a) * sum(b) / count in float64, from the three sums *products*, *a* and *b*.
    Large terms nearly cancel, so their difference is computed in integers: only one or two operations
    round."""
    quotient, remainder = np.divmod(b, count)
    rest, part = np.divmod(a * remainder, count)
    return np.asarray((products - a * quotient - rest) - part / count, np.float64)


def _window_sums(values: npt.NDArray[np.int64], window: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the sum of the values in every window inside the image, computed with an integral image (a
    table of cumulative sums)."""
    h, w = window
    total = np.zeros((values.shape[0] + 1, values.shape[1] + 1), np.int64)
    np.cumsum(np.cumsum(values, axis=0), axis=1, out=total[1:, 1:])
    return np.asarray(total[h:, w:] - total[:-h, w:] - total[h:, :-w] + total[:-h, :-w])
