"""The exact oracle of layers in NumPy. Every path, device and layout must return its results, bit for bit.

Integer sums run in float64 BLAS, which is exact below 2**53 and hundreds of times faster than NumPy's
integer matmul. Names are ONNX's: x is the activation, w the weight, y the result.

    acc = sum_k (x[m,k] - x_zero_point) * (w[n,k] - w_zero_point[n]) + bias[n]               int32, exact
    y   = saturate(round_half_even(float32(acc) * multiplier[n]) + y_zero_point)             int8, uint8
    y   = float32(acc) * float32(x_scale * w_scale[n])  [+ bias[n], if that is float32]      float32
    multiplier[n] = float32(float32(x_scale * w_scale[n]) / y_scale)

Multipliers, bounds and rounding are in `vkq.numerics`; the kernels' launchers use them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.errors import DTypeError
from vkq.numerics.qparams import QParams, check_bias, check_scales, check_zero_points
from vkq.numerics.quantize import check_dtype
from vkq.numerics.requantize import (
    Activation,
    activation_bounds,
    activation_range,
    check_accumulator,
    multipliers,
    requantize,
    wrapped,
)
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.linear import LinearProblem
from vkq.problem.options import Padding

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


def linear_acc(
    xq: Array,
    wq: Array,
    x: QParams,
    bias: Array | None = None,
    w_zero_point: npt.ArrayLike | None = None,
    overflow: str = "refuse",
) -> Int64:
    """Return the exact accumulator of a linear layer (see the module), int64 (..., N). overflow: "refuse"
    raises an error if int32 may overflow; "wrap" gives sums modulo 2**32.

    - xq: (..., K) of dtype ``x.dtype``.
    - wq: (N, K), int8 or uint8.
    - bias: int32 (N,).
    - w_zero_point: a number or (N,).
    """
    problem = LinearProblem.of(xq.shape, wq.shape)
    weight, added = _centred_weight("linear", xq, wq, x, bias, w_zero_point, overflow)
    rows = xq.reshape(problem.m, problem.k).astype(np.float64) - x.zero_point
    return wrapped((rows @ weight.T).astype(np.int64) + added).reshape(problem.y_shape)


def linear(
    xq: Array,
    wq: Array,
    *,
    x: QParams,
    w_scale: npt.ArrayLike,
    bias: Array | None = None,
    y: QParams | None,
    w_zero_point: npt.ArrayLike | None = None,
    activation: Activation = None,
    overflow: str = "refuse",
) -> Array:
    """Return ``activation(x @ w.T + bias)`` of int8 or uint8 data, (..., N): the scheme q8ta_q8csw_q8to, or
    q8ta_q8csw (float32 result) if y is None.

    - xq: (..., K) of dtype ``x.dtype``.
    - wq: (N, K), int8 or uint8.
    - w_scale: a number or (N,).
    - bias: (N,), int32 with scale ``x.scale * w_scale``; if y is None, it may also be finite float32.
    - w_zero_point: a number or (N,), 0 if not given.
    - overflow: as `linear_acc`.

    Raises ArgumentError, DTypeError or AccumulatorOverflowError for invalid operands.

    >>> w = np.array([[1, 2], [3, 4]], np.int8)
    >>> linear(np.array([[10, 20]], np.int8), w, x=QParams(0.5), w_scale=0.5, y=QParams(1.0, 3))
    array([[15, 31]], dtype=int8)
    """
    problem = LinearProblem.of(xq.shape, wq.shape)
    scales = check_scales(w_scale, problem.n, "linear: w_scale")
    in_acc, added = _split_bias("linear", bias, problem.n, y)
    acc = linear_acc(xq, wq, x, in_acc, w_zero_point, overflow)
    return _finish(acc, x, scales, added, y, activation)


def conv2d_acc(
    xq: Array,
    wq: Array,
    x: QParams,
    bias: Array | None = None,
    w_zero_point: npt.ArrayLike | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    overflow: str = "refuse",
) -> Int64:
    """Return the exact accumulator of a convolution, int64 (N, OC, OH, OW). Padding has the value
    x.zero_point."""
    problem = Conv2dProblem.of(xq.shape, wq.shape, stride, padding, dilation, groups)
    weight, added = _centred_weight("conv2d", xq, wq, x, bias, w_zero_point, overflow)
    centred = xq.astype(np.float64) - x.zero_point  # `convolve` pads with 0, which now means x.zero_point
    return wrapped(convolve(centred, weight, problem).astype(np.int64) + added.reshape(-1, 1, 1))


def conv2d(
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
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    overflow: str = "refuse",
) -> Array:
    """Return the 2-D convolution of int8 or uint8 data, (N, OC, OH, OW), as ONNX QLinearConv does: int8 or
    uint8, or float32 if y is None.

    - xq: (N, IC, H, W) of dtype ``x.dtype``.
    - wq: (OC, IC/groups, KH, KW), int8 or uint8.
    - stride, padding, dilation, groups: as `vkq.problem.Conv2dProblem.of`.
    - w_scale, bias and w_zero_point: one number, or one for each output channel.
    - overflow and errors: as `linear`.
    """
    problem = Conv2dProblem.of(xq.shape, wq.shape, stride, padding, dilation, groups)
    scales = check_scales(w_scale, problem.oc, "conv2d: w_scale")
    in_acc, added = _split_bias("conv2d", bias, problem.oc, y)
    acc = conv2d_acc(
        xq, wq, x, in_acc, w_zero_point, stride=stride, padding=padding, dilation=dilation, groups=groups,
        overflow=overflow,
    )  # fmt: skip
    return np.moveaxis(_finish(np.moveaxis(acc, 1, -1), x, scales, added, y, activation), -1, 1)


def convolve(
    x: npt.NDArray[np.float64], w: npt.NDArray[np.float64], p: Conv2dProblem
) -> npt.NDArray[np.float64]:
    """Return the convolution of float64 arrays: one matrix product for each tap of the kernel, without an
    im2col copy. The sums of integers are exact in any order."""
    top, left, bottom, right = p.padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    padded = padded.reshape(p.n, p.groups, p.ic // p.groups, *padded.shape[2:])
    taps = w.reshape(p.groups, p.oc // p.groups, p.ic // p.groups, p.kh, p.kw)
    pixels = p.oh * p.ow
    y = np.zeros((p.n, p.groups, p.oc // p.groups, pixels))
    for i, j in np.ndindex(p.kh, p.kw):
        row, column = i * p.dilation[0], j * p.dilation[1]
        rows = slice(row, row + (p.oh - 1) * p.stride[0] + 1, p.stride[0])
        columns = slice(column, column + (p.ow - 1) * p.stride[1] + 1, p.stride[1])
        y += taps[..., i, j] @ padded[..., rows, columns].reshape(p.n, p.groups, p.ic // p.groups, pixels)
    return y.reshape(p.y_shape)


def _finish(
    acc: Int64, x: QParams, w_scale: Float32, bias: Float32 | None, y: QParams | None, activation: Activation
) -> Array:
    """Return accumulators (output channels last) as 8-bit results, or as float32 if y is None."""
    if y is not None:
        return requantize(acc, multipliers(x.scale, w_scale, y.scale), y, activation_bounds(activation, y))
    low, high = activation_range(activation)
    with np.errstate(over="ignore"):
        result = acc.astype(np.float32) * multipliers(x.scale, w_scale)
        if bias is not None:
            result = result + bias
        return np.asarray(np.clip(result, np.float32(low), np.float32(high)))


def _centred_weight(
    op: str,
    xq: Array,
    wq: Array,
    x: QParams,
    bias: Array | None,
    w_zero_point: npt.ArrayLike | None,
    overflow: str,
) -> tuple[npt.NDArray[np.float64], Int64]:
    """Return (weight - zero points, bias or zeros). Raises an error for operands of wrong types, and for a
    possible overflow if *overflow* is "refuse"."""
    check_dtype(op, "x", xq, x)
    if wq.dtype not in (np.int8, np.uint8):
        raise DTypeError(f"{op}: weight has dtype {wq.dtype}; it must be int8 or uint8.")
    channels = wq.shape[0]
    added = check_bias(np.zeros(channels, np.int32) if bias is None else bias, channels, False, f"{op}: bias")
    zero_points = check_zero_points(w_zero_point, channels, wq.dtype, f"{op}: w_zero_point")
    if overflow == "refuse":
        check_accumulator(wq, x, added, zero_points)
    centred = wq.astype(np.float64) - zero_points.reshape((channels,) + (1,) * (wq.ndim - 1))
    return np.asarray(centred), np.asarray(added, np.int64)


def _split_bias(
    op: str, bias: Array | None, channels: int, y: QParams | None
) -> tuple[Array | None, Float32 | None]:
    """Return (int32 bias, float32 bias): the first is added to the accumulator, the second to the float32
    result. At least one of them is None."""
    if bias is None:
        return None, None
    checked = check_bias(bias, channels, y is None, f"{op}: bias")
    return (checked, None) if checked.dtype == np.int32 else (None, checked)
