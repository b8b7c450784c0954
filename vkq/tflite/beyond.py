"""Functions of 8-bit values in LiteRT's own kernels, for scales that XNNPACK refuses."""

from __future__ import annotations

import numpy as np

from ..graph.graph import Array
from ..numerics.qparams import QParams
from .arithmetic import by_fixed, every, fixed_multiplier, stored
from .lowering import Unsupported

SUM_ROOM = 20  # bits by which the operands of a sum are shifted left for precision


def ratio(*factors: float, y: QParams) -> float:
    """Return the product of *factors* divided by y's scale, computed in float32."""
    product = np.float32(1)
    with np.errstate(all="ignore"):
        for factor in factors:
            product = product * np.float32(factor)
        return float(product / np.float32(y.scale))


def sums_supported(a: QParams, b: QParams, y: QParams) -> bool:
    """Return True if XNNPACK supports a sum with the scales of a, b and y."""
    return all(2**-10 <= ratio(q.scale, y=y) < 2**8 for q in (a, b))


def sum_table(a: QParams, b: QParams, y: QParams, subtract: bool) -> Array:
    """Return the ADD or SUB of LiteRT's own kernels (not XNNPACK's) as a table [a, b]. Both operands are
    first converted to twice the larger scale."""
    both = 2 * max(a.scale, b.scale)
    left, right = (
        by_fixed((every(q) - q.zero_point) << SUM_ROOM, *fixed_multiplier(q.scale / both)) for q in (a, b)
    )
    total = left[:, np.newaxis] + (-right if subtract else right)[np.newaxis, :]
    moved = by_fixed(total, *fixed_multiplier(both / (2**SUM_ROOM * y.scale))) + y.zero_point
    if not subtract and not -(2**15) <= moved.min() <= moved.max() < 2**15:
        raise Unsupported(
            f"its result has the scale {y.scale}, its operands {a.scale} and {b.scale}: XNNPACK requires less"
            " than 256 times y's scale, and LiteRT's own kernel would overflow 16 bits"
        )
    return stored(moved, y)


def products_supported(a: QParams, b: QParams, y: QParams) -> bool:
    """Return True if XNNPACK supports a product with the scales of a, b and y."""
    return bool(2**-16 <= ratio(a.scale, b.scale, y=y) < 2**8)


def product_table(a: QParams, b: QParams, y: QParams) -> Array:
    """Return the MUL of LiteRT's own kernels (not XNNPACK's) as a table [a, b]."""
    left, right = (every(q) - q.zero_point for q in (a, b))
    factor = fixed_multiplier(a.scale * b.scale / y.scale)
    return stored(by_fixed(left[:, np.newaxis] * right[np.newaxis, :], *factor) + y.zero_point, y)


def is_converted(x: QParams, y: QParams, alpha: float = 1.0) -> bool:
    """Return True if XNNPACK supports a conversion from x's scale to y's scale that multiplies negative
    values by *alpha*."""
    above = ratio(x.scale, y=y)
    below = abs(np.float32(above) * np.float32(alpha))
    return bool(2**-8 <= above <= 2**7 and 2**-8 <= below <= 2**7)


def leaky(x: QParams, y: QParams, alpha: float) -> Array:
    """Return the LEAKY_RELU of LiteRT's own kernels (not XNNPACK's) as a table."""
    numbers = every(x) - x.zero_point
    above, below = (by_fixed(numbers, *fixed_multiplier(x.scale * s / y.scale)) for s in (1.0, alpha))
    return stored(np.where(numbers >= 0, above, below) + y.zero_point, y)
