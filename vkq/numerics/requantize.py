"""Requantization of int32 accumulators to 8 bits in NumPy: multipliers, bounds of fused activations,
rounding, and channels whose accumulator may overflow. The results have the same bits as those of ONNX
Runtime's QLinearConv and QLinearMatMul.

    multiplier[n] = float32(float32(x_scale * w_scale[n]) / y_scale)
    y             = saturate(round_half_even(float32(acc) * multiplier[n]) + y_zero_point)
"""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vkq.errors import AccumulatorOverflowError, ArgumentError
from vkq.numerics.qparams import SMALLEST_SCALE, QParams
from vkq.numerics.quantize import quantize

Activation = Literal["relu", "relu6"] | tuple[float, float] | None
# What a layer does with weights whose accumulator may exceed int32: refuse them, or let the sums wrap.
OVERFLOW = ("refuse", "wrap")
Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

# The parameters with the largest |x_q - zero_point|, 255: the bound for rows whose zero points are computed
# at run time.
WORST_CASE = QParams(1.0, 127)


def multipliers(x_scale: float, w_scale: npt.ArrayLike, y_scale: npt.ArrayLike | None = None) -> Float32:
    """Return a float32 multiplier for each output channel: ``(x_scale * w_scale) / y_scale``, in this order.

    Each step is rounded to float32, as in ONNX Runtime. Without ``y_scale`` (float32 output), the
    multiplier is ``x_scale * w_scale``. ``y_scale`` is a number, or one for each channel. The result has
    the shape of w_scale, at least 1-D.

    Raises ArgumentError, with the channel, if a multiplier is not finite. For float32 output, it also
    raises if a multiplier is below 2**-126, which a device may flush to zero.

    >>> multipliers(0.5, [0.25, 0.5], 0.125)
    array([1., 2.], dtype=float32)
    """
    with np.errstate(over="ignore", under="ignore"):
        result = np.float32(x_scale) * np.atleast_1d(np.asarray(w_scale, np.float32))
        if y_scale is not None:
            result = result / np.asarray(y_scale, np.float32)
    least = 0.0 if y_scale is not None else SMALLEST_SCALE
    bad = np.flatnonzero(~np.isfinite(result) | (result < np.float32(least)))
    if bad.size:
        channel = int(bad[0])
        formula = "x_scale * w_scale" + (" / y_scale" if y_scale is not None else "")
        raise ArgumentError(
            f"output channel {channel}: {formula} is {result[channel]} as a float32; "
            f"it must be finite and at least {least:g}: check the scales."
        )
    return np.asarray(result, np.float32)


def activation_range(activation: Activation) -> tuple[float, float]:
    """Return the bounds (lo, hi) of a fused activation as real numbers, possibly infinite. *activation*:
    None, "relu", "relu6" or (lo, hi).

    Raises ArgumentError for another name, for lo > hi and for NaN.
    """
    if activation is None:
        return (-np.inf, np.inf)
    if activation == "relu":
        return (0.0, np.inf)
    if activation == "relu6":
        return (0.0, 6.0)
    if isinstance(activation, str) or len(activation) != 2 or not activation[0] <= activation[1]:
        raise ArgumentError(
            f'activation is {activation!r}; use None, "relu", "relu6" or (lo, hi) with lo <= hi.'
        )
    # adding 0.0 turns -0.0 into 0.0: a clamp must not give -0.0
    return (activation[0] + 0.0, activation[1] + 0.0)


def activation_bounds(activation: Activation, y: QParams) -> tuple[int, int]:
    """Return (quantize(lo), quantize(hi)) for the bounds of a fused activation. Clamping y_q to them gives
    the same codes as the activation before quantization.

    >>> activation_bounds("relu", QParams(0.1, -20)), activation_bounds(None, QParams(0.1))
    ((-20, 127), (-128, 127))
    """
    low, high = quantize(np.array(activation_range(activation)), y).tolist()
    return (int(low), int(high))


def requantize(
    acc: Array, multiplier: npt.ArrayLike, y: QParams, clamp: tuple[int, int] | None = None
) -> Array:
    """Return ``saturate(round_half_even(float32(acc) * multiplier) + y.zero_point)``, of dtype ``y.dtype``.

    - acc: integers.
    - multiplier: float32, finite, broadcast against acc. The product is rounded once, to float32.
    - clamp: (lo, hi), the bounds of the result in values of y's dtype (`activation_bounds`); None: the range
      of the dtype.

    >>> requantize(np.array([1, 3, 5, 1000]), np.float32(0.5), QParams(1.0))
    array([  0,   2,   2, 127], dtype=int8)
    """
    low, high = clamp if clamp is not None else (y.qmin, y.qmax)
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.rint(acc.astype(np.float32) * np.asarray(multiplier, np.float32))
    clamped = np.clip(rounded, np.float32(low - y.zero_point), np.float32(high - y.zero_point))
    return np.asarray(clamped.astype(np.int32) + y.zero_point).astype(y.dtype)


def check_accumulator(
    weight: npt.NDArray[Any],
    x: QParams,
    bias: npt.NDArray[Any] | None = None,
    w_zero_point: npt.ArrayLike | None = None,
) -> None:
    """Raise AccumulatorOverflowError, with the worst channel, if the int32 accumulator of a linear layer or
    a convolution may overflow.

    - weight: int8 or uint8, output channels first.
    - x: the parameters of the activation.
    - bias: int32 (channels,).
    - w_zero_point: one integer, or one for each channel; None: 0.

    Channel n may overflow if this bound is at least 2**31:

        max(|qmin - x.zero_point|, |qmax - x.zero_point|) * sum_k |w[n,k] - w_zero_point[n]| + |bias[n]|

    >>> check_accumulator(np.full((2, 1000), 127, np.int8), QParams(1.0))
    """
    bounds = _bounds(weight, x, bias, w_zero_point)
    if bounds.size and bounds.max() >= 2**31:
        channel = int(bounds.argmax())
        raise AccumulatorOverflowError(
            f"output channel {channel}: the accumulator may reach {int(bounds[channel])} "
            f"({_reach(x)} * sum|w - w_zero_point| + |bias|), and int32 holds less than 2**31 = {2**31}; use"
            f" smaller weights or bias, split the reduction (its length is {prod(weight.shape[1:])}), or take"
            " overflow='wrap' for sums modulo 2**32, as ONNX Runtime's are."
        )


def overflowing(
    weight: npt.NDArray[Any],
    x: QParams,
    bias: npt.NDArray[Any] | None = None,
    w_zero_point: npt.ArrayLike | None = None,
) -> list[int]:
    """Return the output channels whose accumulator may overflow (`check_accumulator`).

    >>> overflowing(np.array([[1], [2]], np.int8), QParams(1.0), np.full(2, 2**31 - 200, np.int32))
    [1]
    """
    return [int(n) for n in np.flatnonzero(_bounds(weight, x, bias, w_zero_point) >= 2**31)]


def wrapped(acc: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return int64 sums modulo 2**32, in the range of int32, like the sums of an int32 accumulator."""
    return acc.astype(np.int32).astype(np.int64)


def _reach(x: QParams) -> int:
    """Return the largest ``|x_q - zero_point|`` over all codes x_q."""
    return max(abs(x.qmin - x.zero_point), abs(x.qmax - x.zero_point))


def _bounds(
    weight: npt.NDArray[Any], x: QParams, bias: npt.NDArray[Any] | None, w_zero_point: npt.ArrayLike | None
) -> npt.NDArray[np.int64]:
    """Return the largest possible magnitude of each output channel's accumulator; zeros if no weights of
    this shape and dtype can overflow it (`_cannot_overflow`)."""
    length, reach = prod(weight.shape[1:]), _reach(x)
    if weight.size and _cannot_overflow(weight, reach * length, bias, w_zero_point):
        return np.zeros(weight.shape[0], np.int64)
    flat = weight.reshape(weight.shape[0], length).astype(np.int64)
    if w_zero_point is not None:
        flat -= np.asarray(w_zero_point, np.int64).reshape(-1, 1)
    bounds: npt.NDArray[np.int64] = reach * np.abs(flat).sum(axis=1)
    return bounds if bias is None else bounds + np.abs(bias.astype(np.int64))


def _cannot_overflow(
    weight: npt.NDArray[Any], steps: int, bias: npt.NDArray[Any] | None, w_zero_point: npt.ArrayLike | None
) -> bool:
    """Return True if the accumulator cannot overflow even with the largest weights of the dtype. This holds
    for most layers; their weights are then not read."""
    zeros = np.zeros(1, np.int64) if w_zero_point is None else np.asarray(w_zero_point, np.int64)
    low, high = np.iinfo(weight.dtype).min, np.iinfo(weight.dtype).max
    largest = max(abs(w - int(z)) for w in (low, high) for z in (zeros.min(), zeros.max()))
    most = 0 if bias is None else int(np.abs(bias.astype(np.int64)).max())
    return steps * largest + most < 2**31
