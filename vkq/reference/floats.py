"""The oracle of the schemes q8csw, f32 and f16, in float64: float activations times integer or float weights.

    y = (sum_k x (w - w_zero_point)) * w_scale + bias

A device sums in float32, in some order, and rounds every product and sum once. With u = 2**-24 its result
differs from this one by at most (K + 4) u times the result for ``magnitude=True``, which is sum |x| |w -
w_zero_point| w_scale + |bias|, as long as nothing overflows.

With compute="float16" x is rounded to float16 first, to the nearest or toward zero: by at most 2**-10 |x|, or
2**-14 where |x| is less than that, and infinite beyond 65504. The products are exact then, and matrix units
may add with up to four roundoffs for each k, so that (4 (K + 4) u + 2**-10) of the magnitude, and 2**-14 of
that of x = 1, bound the error. A float weight is rounded to float16 on the host, to nearest, which adds
2**-11 of the magnitude, and 2**-25 of that of a weight of 1, unless it is float16.

Without matrix units, in float16 arithmetic (`vkq.kernels.float16`), x is rounded alike, and of each tap 16
products after one another, of 2**-5 of the weight's whole numbers, are added up in float16 before float32
adds their sums. A device rounds each product and sum by at most 2**-10 of it, and what is less than 2**-14
may become 0, so that ((1 + 2**-10)**18 - 1 + (K + 4) u) of the magnitude, 1.8 % of it, and 2**-8 + 2**-14 of
that of x = 1 bound the error; where it rounds to nearest, half of the first, and as errors rarely go one way,
a tenth of that is seen. Nothing overflows where every |x| is at most 500. A float weight is rounded
to float16, to nearest, and multiplied as it is: (1 + 2**-10)**19 - 1, and 2**-14 for each number of x and of
the weight that a device may take for 0, times the other one, and twice that for each product.
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
    """x: (..., K), float. wq: (N, K), int8 or uint8, or float with w_scale None. Returns (..., N)."""
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
    """Padded with 0. x: (N, IC, H, W), float. wq: (OC, IC/groups, KH, KW), int8, uint8 or float."""
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
    """x: (N, IC, H, W), float. wq: (IC, OC/groups, KH, KW), int8, uint8 or float."""
    p = TransposedConv2dProblem.of(x.shape, wq.shape, stride, padding, output_padding, dilation, groups)
    return conv2d_q8csw(
        spread(x, p, 0), forward_weight(wq, groups), w_scale, bias, activation, dilation=p.dilation,
        groups=groups, w_zero_point=w_zero_point, magnitude=magnitude,
    )  # fmt: skip


def _operands(
    op: str, x: Array, wq: Array, w_zero_point: npt.ArrayLike | None, magnitude: bool
) -> tuple[Float64, Float64]:
    """Return x and the weight minus its zero points, or their magnitudes; refuse operands of wrong types."""
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
    """Convert sums to results. Their last axis is that of the output channels."""
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
