"""The exact integer correlation in NumPy's int64, tap after tap, without BLAS and floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..problem.conv2d import Conv2dProblem

Int64 = npt.NDArray[np.int64]


def conv2d(
    x: npt.NDArray[Any], w: npt.NDArray[Any], bias: npt.NDArray[Any] | None, p: Conv2dProblem
) -> Int64:
    """Return ``bias + sum x * w`` modulo 2**64 for the shapes and options of *p*. x: (N, C, H, W). w: (OC,
    C/groups, KH, KW).

    >>> p = Conv2dProblem.of((1, 1, 1, 3), (1, 1, 1, 2))
    >>> conv2d(np.array([[[[1, 2, 3]]]]), np.array([[[[1, 10]]]]), None, p)
    array([[[[21, 32]]]])
    """
    top, left, bottom, right = p.padding
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    y = np.zeros((p.n, p.groups, p.oc // p.groups, p.oh, p.ow), np.int64)
    images = padded.reshape(p.n, p.groups, p.ic // p.groups, *padded.shape[2:])
    taps = w.astype(np.int64).reshape(p.groups, p.oc // p.groups, *w.shape[1:])
    down, across = (p.oh - 1) * p.stride[0] + 1, (p.ow - 1) * p.stride[1] + 1
    for c, a, b in np.ndindex(*w.shape[1:]):
        i, j = a * p.dilation[0], b * p.dilation[1]
        window = images[:, :, c, i : i + down : p.stride[0], j : j + across : p.stride[1]]
        y += window[:, :, None] * taps[None, :, :, c, a, b, None, None]
    if bias is not None:
        y += bias.astype(np.int64).reshape(1, p.groups, -1, 1, 1)
    return y.reshape(p.y_shape)
