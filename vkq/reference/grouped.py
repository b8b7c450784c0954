"""The float64 oracle of products with 4-bit or 8-bit weights in groups along K (schemes q4gsw and q8gsw)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.numerics.grouped import GroupedWeight
from vkq.numerics.requantize import Activation, activation_range
from vkq.problem.linear import LinearProblem


def linear_grouped(
    x: npt.NDArray[Any],
    w: GroupedWeight,
    bias: npt.NDArray[Any] | None = None,
    activation: Activation = None,
    magnitude: bool = False,
) -> npt.NDArray[np.float64]:
    """Return y (..., N) for float x (..., K):

        y[m,n] = sum_g scale[n,g] * sum_{k in g} x[m,k] (q[n,k] - zero_point[n,g])  + bias[n]

    With *magnitude*, return M = sum |x| |scale| |q - zero_point| + |bias|. The error of a float32 result is
    at most (K + 4) * 2**-24 * M in any order of the additions. At most K + 4 roundings apply to each
    product: of the difference (if the zero point is a fraction), the product, the sums in its group and
    over the groups, the scale, and the bias.

    For float16 x, matrix units may compute the products. These are exact, because a code minus its zero
    point is exact in float16. The sums of a group have up to four roundings for each k; scales and the sum
    over groups are float32. The bound is then 4 * (K + 4) * 2**-24 * M, plus the rounding of y to float16.
    A matrix unit may replace elements of x below 2**-14 by 0.

    >>> w = GroupedWeight(np.full((1, 1, 16), 0xA9, np.uint8), np.full((1, 1), 0.5, np.float32))
    >>> linear_grouped(np.ones((1, 32)), w)
    array([[24.]])
    """
    problem = LinearProblem.of(x.shape, w.shape)
    points, scales = (w.along_k(each.astype(np.float64)) for each in (w.zero_points(), w.scales()))
    weight = (w.codes() - points) * scales
    added = np.zeros(problem.n) if bias is None else bias.astype(np.float64)
    rows = x.reshape(problem.m, problem.k).astype(np.float64)
    if magnitude:
        rows, weight, added = np.abs(rows), np.abs(weight), np.abs(added)
    with np.errstate(invalid="ignore"):
        y = np.clip(rows @ weight.T + added, *activation_range(activation))
    return np.asarray(y).reshape(problem.y_shape)
