"""The exact NumPy oracle of transposed convolutions: an ordinary convolution, with the kernel rotated by
180 degrees, of the input with zeros between its pixels.

    acc[n, oc, s*h + d*kh - top, s*w + d*kw - left] +=
        (x[n, ic, h, w] - x_zp) * (w[ic, oc, kh, kw] - w_zp[oc])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.numerics.qparams import QParams
from vkq.numerics.requantize import Activation
from vkq.problem.transposed import TransposedConv2dProblem
from vkq.reference import layers

Array = npt.NDArray[Any]


def conv_transpose2d(
    xq: Array,
    wq: Array,
    *,
    x: QParams,
    w_scale: npt.ArrayLike,
    bias: Array | None = None,
    y: QParams | None,
    w_zero_point: npt.ArrayLike | None = None,
    activation: Activation = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    overflow: str = "refuse",
) -> Array:
    """Return the transposed convolution of int8 or uint8 data, (N, OC, OH, OW): int8 or uint8, or float32
    if y is None.

    - xq: (N, IC, H, W) of dtype ``x.dtype``.
    - wq: (IC, OC/groups, KH, KW).
    - w_scale, bias and w_zero_point: one number, or one for each output channel.

    >>> x, w = np.array([[[[1, 2]]]], np.int8), np.array([[[[10, 20, 30]]]], np.int8)
    >>> conv_transpose2d(x, w, x=QParams(1.0), w_scale=1.0, y=QParams(1.0), stride=2)
    array([[[[10, 20, 50, 40, 60]]]], dtype=int8)
    """
    p = TransposedConv2dProblem.of(xq.shape, wq.shape, stride, padding, output_padding, dilation, groups)
    if not p.oh * p.ow:
        return np.zeros(p.y_shape, np.float32 if y is None else y.dtype)
    return layers.conv2d(
        spread(xq, p, x.zero_point), forward_weight(wq, groups), x=x, w_scale=w_scale, bias=bias, y=y,
        w_zero_point=w_zero_point, activation=activation, dilation=p.dilation, groups=groups,
        overflow=overflow,
    )  # fmt: skip


def forward_weight(weight: Array, groups: int) -> Array:
    """Return the weight (OC, IC/groups, KH, KW) of the ordinary convolution: *weight* (IC, OC/groups, KH,
    KW), rotated by 180 degrees."""
    ic, group_oc, kh, kw = weight.shape
    by_group = weight.reshape(groups, ic // groups, group_oc, kh, kw).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(by_group.reshape(groups * group_oc, ic // groups, kh, kw)[:, :, ::-1, ::-1])


def spread(xq: Array, p: TransposedConv2dProblem, zero_point: int) -> Array:
    """Return the input of the ordinary convolution: *xq* with stride - 1 zero points between its pixels,
    and enough zero points around it that the convolution needs no padding."""
    top, left = (p.dilation[i] * (k - 1) for i, k in enumerate((p.kh, p.kw)))
    h, w = p.oh + top, p.ow + left
    rows = top - p.padding[0] + p.stride[0] * np.arange(p.h)
    columns = left - p.padding[1] + p.stride[1] * np.arange(p.w)
    out = np.full((p.n, p.ic, h, w), zero_point, xq.dtype)
    kept = (rows >= 0) & (rows < h), (columns >= 0) & (columns < w)
    out[:, :, rows[kept[0], None], columns[kept[1]]] = xq[:, :, kept[0]][:, :, :, kept[1]]
    return out
