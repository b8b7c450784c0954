"""The exact NumPy oracle of the scheme dq8ca_q8csw: linear layers that quantize each row of the activations
with parameters from this row.

    low, high  = min(0, min x), max(0, max x)                  over the finite values of a row
    scale      = float32(high - low) / 255                     at least 2**-126; 1 for a row of zeros
    zero_point = saturate(-128 + round_half_even(-low / scale))
    x_q        = saturate(round_half_even(x / scale) + zero_point)
    y          = float32(acc) * (scale * w_scale[n]) + bias[n]      acc as in `vkq.reference.layers`

This is ONNX DynamicQuantizeLinear (https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html), applied
to each row and shifted from uint8 to int8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.numerics.qparams import SMALLEST_SCALE, check_bias, check_scales, check_zero_points
from vkq.numerics.requantize import WORST_CASE, Activation, activation_range, check_accumulator, wrapped
from vkq.problem.linear import LinearProblem

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
_LARGEST = np.finfo(np.float32).max


def row_parameters(x: Float32) -> tuple[Float32, npt.NDArray[np.int32]]:
    """Return (scale, zero_point) of every row of x (M, K).

    Infinities and NaN are ignored. A difference high - low beyond float32 becomes the largest float32.

    >>> scale, zero_point = row_parameters(np.array([[-51.0, 204.0], [0.0, 0.0]], np.float32))
    >>> scale.tolist(), zero_point.tolist()
    ([1.0, 1.0], [-77, -128])
    """
    finite = np.where(np.isfinite(x), x, np.float32(0))
    low, high = finite.min(axis=1, initial=0), finite.max(axis=1, initial=0)
    with np.errstate(over="ignore", under="ignore"):
        span = np.minimum(high - low, _LARGEST)
        scale = np.maximum(span / np.float32(255), np.float32(SMALLEST_SCALE))
        scale = np.where(span == 0, np.float32(1), scale)
        zero_point = np.clip(np.rint(-low / scale).astype(np.int32) - 128, -128, 127)
    return scale, zero_point


def quantize_rows(x: Float32, scale: Float32, zero_point: npt.NDArray[np.int32]) -> npt.NDArray[np.int8]:
    """Quantize every row of x (M, K) with its scale and zero point. Infinities saturate; NaN gives -128."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        rounded = np.rint(x / scale[:, None])
    clamped = np.clip(np.where(np.isnan(rounded), np.float32(-512), rounded), -512, 512)
    return np.asarray(np.clip(clamped.astype(np.int32) + zero_point[:, None], -128, 127), np.int8)


def row_multipliers(scale: Float32, w_scale: Float32) -> Float32:
    """Return ``scale[m] * w_scale[n]``, (M, N). Products below 2**-126 become 0, and products beyond
    float32 the largest float32."""
    # exact, because both factors have 24 bits
    exact = scale.astype(np.float64)[:, None] * w_scale.astype(np.float64)
    product = np.minimum(exact, float(_LARGEST)).astype(np.float32)
    return np.where(exact < SMALLEST_SCALE, np.float32(0), product)


def linear_dynamic(
    x: Float32,
    wq: Array,
    w_scale: npt.ArrayLike,
    *,
    bias: Float32 | None = None,
    w_zero_point: npt.ArrayLike | None = None,
    activation: Activation = None,
    overflow: str = "refuse",
) -> Float32:
    """Return ``activation(x @ w.T + bias)`` as float32 (..., N), bit for bit.

    - x: float32 (..., K).
    - wq: int8 or uint8 (N, K).
    - overflow: "refuse" raises an error if int32 may overflow; "wrap" gives sums modulo 2**32.

    >>> linear_dynamic(np.array([[0.0, 255.0]], np.float32), np.array([[1, 2], [3, 4]], np.int8), 0.5)
    array([[255., 510.]], dtype=float32)
    """
    problem = LinearProblem.of(x.shape, wq.shape)
    scales = check_scales(w_scale, problem.n, "linear: w_scale")
    points = check_zero_points(w_zero_point, problem.n, wq.dtype, "linear: w_zero_point")
    if overflow == "refuse":
        check_accumulator(wq, WORST_CASE, None, points)
    rows = x.reshape(problem.m, problem.k)
    scale, zero_point = row_parameters(rows)
    centred = quantize_rows(rows, scale, zero_point).astype(np.float64) - zero_point[:, None]
    acc = centred @ (wq.astype(np.float64) - points[:, None]).T
    low, high = activation_range(activation)
    with np.errstate(over="ignore"):
        added = (
            np.zeros(problem.n, np.float32)
            if bias is None
            else check_bias(bias, problem.n, True, "linear: bias")
        )
        sums = wrapped(acc.astype(np.int64)).astype(np.float32)
        y = sums * row_multipliers(scale, scales) + added  # without a bias, adding 0.0 removes -0.0
    return np.asarray(np.clip(y, np.float32(low), np.float32(high))).reshape(problem.y_shape)
