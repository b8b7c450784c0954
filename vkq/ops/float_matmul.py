"""Products of two float activations: batches of matrices, as in attention."""

from __future__ import annotations

import math

import numpy as np

from ..errors import ArgumentError
from ..kernels.cast import converted
from ..kernels.float_product import Extents, product
from ..kernels.repack import reshaped
from ..layout.extent import Spec
from ..runtime.builder import Builder, Value
from .choose import broadcast_to


def multiplied(b: Builder, x: Value, z: Value) -> Value:
    """Add ``x @ z`` of float32 or float16 arrays to a plan; shapes broadcast as in np.matmul. Sums are
    those of `vkq.kernels.float_product`. The error is at most (K + 4) 2**-24 times the sum of the terms'
    magnitudes. If x is float16, each sum is rounded to float16 once."""
    dtype, shapes = x.spec.dtype, [x.spec.shape, z.spec.shape]
    x = _matrix(b, converted(b, x, "float32"), (1, *shapes[0]))
    z = _matrix(b, converted(b, z, "float32"), (*shapes[1], 1))
    (*left, m, k), (*right, depth, n) = x.spec.shape, z.spec.shape
    try:
        leading = np.broadcast_shapes(tuple(left), tuple(right))
    except ValueError:
        leading = None
    if k != depth or leading is None:
        raise ArgumentError(
            f"matmul: a has shape {shapes[0]} and b {shapes[1]}; a's last axis must be as long as b's last"
            " but one, and the leading axes must broadcast"
        )
    count = math.prod(leading)
    if math.prod(right) == 1 and count:  # one right matrix for all left matrices: stack their rows
        m, count, x_step = count * m, 1, 0
    else:
        x, x_step = _spread(b, x, leading, (m, k))
    z, z_step = _spread(b, z, leading, (depth, n)) if count != 1 else (z, 0)
    y = b.new(Spec((count, m, n), "float32"))
    if y.spec.size:
        product(b, (x, z), y, Extents(count, m, n, k, x_step, z_step, n))
    shape = (*leading, *shapes[0][-2:-1], *(shapes[1][-1:] if len(shapes[1]) > 1 else ()))
    return converted(b, reshaped(b, y, shape), dtype)


def _matrix(b: Builder, x: Value, otherwise: tuple[int, ...]) -> Value:
    """Reshape a vector to *otherwise*, the shape of a matrix; return other arrays unchanged."""
    return reshaped(b, x, otherwise) if len(x.spec.shape) == 1 else x


def _spread(b: Builder, x: Value, leading: tuple[int, ...], last: tuple[int, int]) -> tuple[Value, int]:
    """Return (the matrices of x, broadcast to the *leading* axes; the stride in elements from one matrix to
    the next). *last*: the shape of a matrix. A single matrix is stored once, with stride 0."""
    own = x.spec.shape[:-2]
    if math.prod(own) == 1:
        return x, 0
    if own != leading and math.prod(own) != math.prod(leading):
        x = broadcast_to(b, x, (*leading, *last))
    return x, math.prod(last)
