"""Quantization before inference: int8 and int4 weights, int32 biases, and the parameters of activations
from observed ranges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from vkq.arguments import checked, shown
from vkq.errors import ArgumentError, DTypeError
from vkq.numerics.grouped import GroupedWeight, quantize_groups
from vkq.numerics.qparams import SMALLEST_SCALE, QDType, QParams

HALF_BINS = 2048  # a histogram has this many bins on each side of 0

Sample = TypeVar("Sample", bound=Mapping[str, Any])


def usable_samples(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the calibration samples, which map the names of inputs to arrays. Raises ArgumentError for a
    sample with NaN or +infinity, or without elements, because it has no range. Attention masks may hold
    -infinity."""
    for i, sample in enumerate(samples):
        arrays = {name: np.asarray(array) for name, array in sample.items()}
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not (array < np.inf).all():
                raise ArgumentError(
                    f"calibration sample {i}: input {name!r} holds NaN or +infinity; leave the sample out"
                )
        if not any(array.size for array in arrays.values()):
            shapes = {name: array.shape for name, array in arrays.items()}
            raise ArgumentError(f"calibration sample {i} has no elements: its shapes are {shapes}")
        yield sample


@overload
def quantize_weight(
    weight: npt.ArrayLike, axis: int | None = 0
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]: ...
@overload
def quantize_weight(
    weight: npt.ArrayLike,
    axis: int | None = 0,
    *,
    bits: int,
    group: int,
    symmetric: bool = True,
    scale_dtype: Literal["float16", "float32"] = "float32",
) -> GroupedWeight: ...
@checked
def quantize_weight(
    weight: npt.ArrayLike,
    axis: int | None = 0,
    *,
    bits: int = 8,
    group: int | None = None,
    symmetric: bool = True,
    scale_dtype: str = "float32",
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]] | GroupedWeight:
    """Quantize a float weight to int8, symmetrically, with one scale for each output channel. The two
    results are *weight* and *w_scale* of a layer. With *group* or ``bits=4``, quantize in groups along K
    instead; the result, a `GroupedWeight`, is *weight* of `Linear`.

    Args:
        weight: float16, float32 or float64 of any shape, finite; (N, K) for groups.
        axis: the axis of the output channels (0 for `Linear` and `Conv2d`); None for a single scale.
        bits: 4 or 8.
        group: 16, 32, 64 or 128 consecutive elements along K; the last group may have fewer. None: no groups,
            or groups of 128 with ``bits=4``.
        symmetric: whether the zero points of groups are the default, 2**(bits - 1).
        scale_dtype: "float16" or "float32", to which the scales of groups are rounded.

    For each channel, in float32:

        scale = max(|w|) / 127, at least 2**-126; 1 for a channel of zeros
        q = round_half_even(w / scale), which is in [-127, 127]

    onnxruntime.quantization computes the same for symmetric int8 weights. Returns int8 of the weight's
    shape, and float32 scales (channels,), or (1,) if axis is None.

    For each group (a scale of 0 becomes 1):

        symmetric: scale = m / -2**(bits - 1), where m is the w with the largest |w|; m gets the code 0;
                   zero_point = 2**(bits - 1)
        otherwise: scale = (max(0, w) - min(0, w)) / (2**bits - 1); zero_point = saturate(round(-min / scale))
        q = saturate(round_half_even(w / scale) + zero_point)

    ONNX Runtime's quantizer for MatMulNBits does the same.

    Raises DTypeError for another dtype; ArgumentError for an axis that does not exist, another group size,
    NaN or infinity.

    >>> q, scale = quantize_weight(np.array([[0.5, -1.27], [0.0, 254.0]], np.float32))
    >>> q.tolist(), scale.tolist()
    ([[50, -127], [0, 127]], [0.009999999776482582, 2.0])
    """
    w = np.asarray(weight)
    if w.dtype.kind != "f":
        raise DTypeError(f"quantize_weight: weight has dtype {w.dtype}; it must be floating point.")
    if axis is not None and not -w.ndim <= axis < w.ndim:
        raise ArgumentError(
            f"quantize_weight: axis is {axis} and weight has {w.ndim} axes (shape {w.shape}); it must be in"
            f" [{-w.ndim}, {w.ndim - 1}], or None"
        )
    values = _finite(w, "quantize_weight: weight")
    if bits != 8 or group is not None:
        if axis != 0:
            raise ArgumentError(f"quantize_weight: axis is {axis} and groups lie along K; leave it out")
        return quantize_groups(values, bits, 128 if group is None else group, symmetric, scale_dtype)
    if not symmetric or scale_dtype != "float32":
        raise ArgumentError(
            f"quantize_weight: symmetric={symmetric}, scale_dtype={scale_dtype!r} without group; scales of"
            " channels are symmetric float32: give group=16, 32, 64 or 128, or leave these out"
        )
    others = tuple(i for i in range(w.ndim) if axis is None or i != axis % w.ndim)
    largest = np.abs(values).max(axis=others, keepdims=True, initial=0)
    scale = np.maximum(largest / np.float32(127), np.float32(SMALLEST_SCALE))
    scale = np.where(largest > 0, scale, np.float32(1)).astype(np.float32)
    return np.rint(values / scale).astype(np.int8), scale.reshape(-1)


def rounded_bias(
    bias: npt.NDArray[np.float32], x_scale: float, w_scale: npt.NDArray[np.float32], what: str
) -> npt.NDArray[np.int32]:
    """Return a float32 bias as int32 with the scale ``x_scale * w_scale``, computed in float32 as in ONNX
    Runtime's quantizer: ``round_half_even(bias / (x_scale * w_scale))``.

    Raises ArgumentError with the channel if a result exceeds int32. *what*: the name of the tensor in
    errors.

    >>> rounded_bias(np.float32([0.25, -1.0]), 0.5, np.float32([0.5, 0.25]), "bias").tolist()
    [1, -8]
    """
    with np.errstate(all="ignore"):
        rounded = np.rint(bias / (np.float32(x_scale) * w_scale))
    bad = np.flatnonzero(~(np.abs(rounded) < 2.0**31))
    if bad.size:
        at = int(bad[0])
        raise ArgumentError(
            f"{what}[{at}] is {bias[at]}, which is {rounded[at]:g} steps of x_scale * w_scale ="
            f" {x_scale * float(w_scale[at]):g}; int32 cannot hold it: use a larger scale, or float32 results"
        )
    return np.asarray(rounded, np.int32)


class Calibrator:
    """Observe the range of an activation over sample data, and compute the `QParams` for this range.

    Call ``observe`` with one batch after the other. ``qparams`` returns the parameters for the observed
    range, or for the part of it with *percentile* per cent of the values. With a part of the range, a few
    outliers saturate, and all other values get a smaller step.

    The data are kept only as a histogram of 4096 bins, whose width is a power of two. When the range grows,
    neighbouring bins are merged. So counts are exact, and a percentile is exact to one bin.

    ``vkq quantize`` calibrates and quantizes whole models.

    >>> c = Calibrator()
    >>> c.observe(np.array([0.0, 1.0], np.float32))
    >>> c.observe(np.array([-1.0, 0.5], np.float32))
    >>> c.low, c.high, c.qparams(symmetric=True).zero_point
    (-1.0, 1.0, 0)
    """

    def __init__(self) -> None:
        self.count = 0
        self.low = math.inf
        self.high = -math.inf
        self._reach = 2.0**-100  # the histogram spans [-reach, reach)
        self._bins = np.zeros(2 * HALF_BINS, np.int64)

    def __repr__(self) -> str:
        seen = f" in [{self.low:g}, {self.high:g}]" if self.count else ""
        return f"<vkq.Calibrator: {self.count} numbers{seen}>"

    @checked
    def observe(self, x: npt.ArrayLike) -> None:
        """Add a batch of finite floating-point values of any shape.

        Raises DTypeError for another dtype, ArgumentError for NaN and infinities, which cannot be quantized.
        """
        given = np.asarray(x)
        if given.dtype.kind != "f":
            raise DTypeError(f"Calibrator: x has dtype {given.dtype}; it must be floating point.")
        values = _finite(given, "Calibrator: x")
        if not values.size:
            return
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self.count += values.size
        self._grow(max(-self.low, self.high))
        at = np.floor(values.ravel() * np.float64(HALF_BINS / self._reach)).astype(np.int64) + HALF_BINS
        self._bins += np.bincount(at, minlength=2 * HALF_BINS)

    @checked
    def qparams(self, dtype: QDType = "int8", symmetric: bool = False, percentile: float = 100.0) -> QParams:
        """Return the parameters for the observed range, computed by `QParams.from_range`.

        percentile: above 50, at most 100. This percentage of the values is below the upper bound of the
        range, and the same percentage is above the lower bound. 100 means the whole range.

        Raises ArgumentError if nothing was observed, and for a percentile out of range.
        """
        if not self.count:
            raise ArgumentError("Calibrator: nothing was observed; call observe(x) with sample data first")
        if not 50 < percentile <= 100:
            raise ArgumentError(
                f"Calibrator: percentile is {shown(percentile)}; it must be above 50 and at most 100"
            )
        low, high = self._between(percentile) if percentile < 100 else (self.low, self.high)
        return QParams.from_range(low, high, dtype, symmetric)

    def _between(self, percentile: float) -> tuple[float, float]:
        """Return the outer edges of the bins with the lower and the upper percentile, clipped to the
        observed range."""
        width = self._reach / HALF_BINS
        below = np.cumsum(self._bins)
        beyond = self._bins.sum() * (1 - percentile / 100)
        first = int(np.searchsorted(below, beyond, "right"))
        last = int(np.searchsorted(below, self._bins.sum() - beyond, "left"))
        return max(self.low, (first - HALF_BINS) * width), min(self.high, (last + 1 - HALF_BINS) * width)

    def _grow(self, largest: float) -> None:
        """Merge neighbouring bins until the histogram contains values of magnitude *largest*."""
        while self._reach <= largest:
            merged = self._bins.reshape(-1, 2).sum(axis=1)
            self._bins = np.concatenate([zeros := np.zeros(HALF_BINS // 2, np.int64), merged, zeros])
            self._reach *= 2


def _finite(values: npt.NDArray[Any], what: str) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        narrowed = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(narrowed))
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        raise ArgumentError(f"{what}{list(at)} is {values[at]}; it must be a finite float32.")
    return narrowed
