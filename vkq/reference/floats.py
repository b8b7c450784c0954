"""The oracle of the schemes q8csw, f32 and f16, in float64: float activations times integer or float weights.

    y = (sum_k x (w - w_zero_point)) * w_scale + bias

With ``magnitude=True``, the functions return M instead of y:

    M = sum |x| |w - w_zero_point| w_scale + |bias|

The error bounds below hold as long as nothing overflows. They use M, M1 (which is M for an x of ones), and
u = 2**-24.

**Float32.** A device adds in float32, in any order, and rounds every product and sum once. The error of its
result is at most (K + 4) u M.

**compute="float16" on matrix units.** x is first rounded to float16, to nearest or toward zero. The error
of x is at most 2**-10 |x|, or 2**-14 if |x| < 2**-14; beyond 65504, x becomes infinite. Products are then
exact. Matrix units may round up to four times for each k. So the error is at most

    (4 (K + 4) u + 2**-10) M + 2**-14 M1

A float32 weight is rounded to float16 on the host, to nearest. This adds 2**-11 M, and 2**-25 times the M
of a weight of ones.

**compute="float16" in float16 arithmetic**, without matrix units (`vkq.kernels.float16`). x is rounded to
float16 as above, and integer weights are multiplied by 2**-5. For each tap, groups of 16 products are added
in float16, and their sums in float32. Each float16 step has an error of at most 2**-10 of its result, and
results below 2**-14 may become 0.

So the error is at most

    ((1 + 2**-10)**18 - 1 + (K + 4) u) M + (2**-8 + 2**-14) M1

The factor of M is 1.8 %. On a device that rounds to nearest, this term is half as large. Measured errors are
a tenth of the bound, because rounding errors rarely have the same sign. Nothing overflows if every |x| is at
most 500.

A float weight is rounded to float16, to nearest, and not scaled. The power in the factor of M is then 19,
not 18. A device may replace an element of x or of the weight below 2**-14 by 0: this adds 2**-14 times the
magnitude of the other factor of each product to the bound. Each product adds a further 2**-13, because the
product and its sum may each be replaced by 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.errors import DTypeError
from vkq.numerics.qparams import check_bias, check_scales, check_zero_points
from vkq.numerics.requantize import Activation, activation_range
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.linear import LinearProblem
from vkq.problem.options import Padding
from vkq.problem.transposed import TransposedConv2dProblem
from vkq.reference.layers import convolve
from vkq.reference.transposed import forward_weight, spread

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def linear_q8csw(
    x: Array,
    wq: Array,
    w_scale: npt.ArrayLike | None,
    bias: Array | None = None,
    activation: Activation = None,
    *,
    w_zero_point: npt.ArrayLike | None = None,
    magnitude: bool = False,
) -> Float64:
    """Return the result of a linear layer by this module's formula, (..., N). x: (..., K), float. wq: (N,
    K), int8 or uint8; or float, with w_scale None."""
    problem = LinearProblem.of(x.shape, wq.shape)
    rows, w = _operands("linear", x.reshape(problem.m, problem.k), wq, w_zero_point, magnitude)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = rows @ w.T
    return _finished("linear", sums, w_scale, bias, activation, magnitude).reshape(problem.y_shape)


def conv2d_q8csw(
    x: Array,
    wq: Array,
    w_scale: npt.ArrayLike | None,
    bias: Array | None = None,
    activation: Activation = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    w_zero_point: npt.ArrayLike | None = None,
    magnitude: bool = False,
) -> Float64:
    """Return the result of a convolution by this module's formula, (N, OC, OH, OW). x: (N, IC, H, W),
    float, padded with 0. wq: (OC, IC/groups, KH, KW), int8, uint8 or float."""
    problem = Conv2dProblem.of(x.shape, wq.shape, stride, padding, dilation, groups)
    images, w = _operands("conv2d", x, wq, w_zero_point, magnitude)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = convolve(images, w, problem)
    last = _finished("conv2d", np.moveaxis(sums, 1, -1), w_scale, bias, activation, magnitude)
    return np.moveaxis(last, -1, 1)


def conv_transpose2d_q8csw(
    x: Array,
    wq: Array,
    w_scale: npt.ArrayLike | None,
    bias: Array | None = None,
    activation: Activation = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    w_zero_point: npt.ArrayLike | None = None,
    magnitude: bool = False,
) -> Float64:
    """Return the result of a transposed convolution by this module's formula, (N, OC, OH, OW). x: (N, IC,
    H, W), float. wq: (IC, OC/groups, KH, KW), int8, uint8 or float."""
    p = TransposedConv2dProblem.of(x.shape, wq.shape, stride, padding, output_padding, dilation, groups)
    return conv2d_q8csw(
        spread(x, p, 0), forward_weight(wq, groups), w_scale, bias, activation, dilation=p.dilation,
        groups=groups, w_zero_point=w_zero_point, magnitude=magnitude,
    )  # fmt: skip


def _operands(
    op: str, x: Array, wq: Array, w_zero_point: npt.ArrayLike | None, magnitude: bool
) -> tuple[Float64, Float64]:
    """Return x and (weight - zero points) in float64, or their magnitudes with *magnitude*. Raises
    DTypeError for wrong types."""
    if x.dtype.kind != "f" or (wq.dtype.kind != "f" and wq.dtype not in (np.int8, np.uint8)):
        raise DTypeError(
            f"{op}: x has dtype {x.dtype} and weight {wq.dtype}; they must be float, and int8, uint8 or float"
        )
    if wq.dtype.kind == "f":
        values, w = x.astype(np.float64), wq.astype(np.float64)
        return (np.abs(values), np.abs(w)) if magnitude else (values, w)
    points = check_zero_points(w_zero_point, wq.shape[0], wq.dtype, f"{op}: w_zero_point")
    w = wq.astype(np.float64) - points.reshape((-1,) + (1,) * (wq.ndim - 1))
    values = x.astype(np.float64)
    return (np.abs(values), np.abs(w)) if magnitude else (values, w)


def _finished(
    op: str,
    sums: Float64,
    w_scale: npt.ArrayLike | None,
    bias: Array | None,
    activation: Activation,
    magnitude: bool,
) -> Float64:
    """Return *sums*, whose last axis is the output channels, after scale, bias and activation."""
    channels = sums.shape[-1]
    scales = np.ones(channels)
    if w_scale is not None:
        scales = check_scales(w_scale, channels, f"{op}: w_scale").astype(np.float64)
    if bias is not None and bias.dtype.kind != "f":
        raise DTypeError(f"{op}: bias has dtype {bias.dtype}; with float x it must be of a float type.")
    added = (
        np.zeros(channels)
        if bias is None
        else check_bias(bias.astype(np.float32), channels, True, f"{op}: bias").astype(np.float64)
    )
    if magnitude:
        return np.asarray(sums * scales + np.abs(added))
    with np.errstate(invalid="ignore"):
        return np.asarray(np.clip(sums * scales + added, *activation_range(activation)))
