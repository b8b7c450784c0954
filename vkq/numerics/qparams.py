"""Quantization parameters: an int8 or uint8 code ``q`` stands for the number ``(q - zero_point) * scale``.

A scale is a float32, as on the device. It is positive and normal, so its reciprocal is finite and no device
flushes it to zero. Names and definitions are those of ONNX QuantizeLinear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from vkq.arguments import RULES, Rule, checked, of, optional, sequence, shown
from vkq.errors import ArgumentError, DTypeError

QDType = Literal["int8", "uint8"]

SMALLEST_SCALE = 2.0**-126  # the smallest normal float32; a device may flush smaller numbers to zero
_RANGES: dict[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}


@dataclass(frozen=True)
class QParams:
    """Per-tensor quantization parameters of an int8 or uint8 tensor.

    scale: positive, at least 2**-126; rounded to float32 at construction.
    zero_point: an integer in the range of ``dtype``; the code that stands for 0.0.
    dtype: "int8" or "uint8".

    Raises DTypeError for an argument of the wrong type, ArgumentError for a value out of range.

    >>> q = QParams(0.1, -3)
    >>> q.scale, q.qmin, q.qmax
    (0.10000000149011612, -128, 127)
    """

    scale: float
    zero_point: int = 0
    dtype: QDType = "int8"

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in get_args(QDType):
            raise DTypeError(f'QParams: dtype is {shown(self.dtype)}; it must be "int8" or "uint8".')
        object.__setattr__(self, "scale", _scale(self.scale))
        object.__setattr__(self, "zero_point", _zero_point(self.zero_point, self.dtype))

    @property
    def qmin(self) -> int:
        """The smallest value of ``dtype``: -128 or 0."""
        return _RANGES[self.dtype][0]

    @property
    def qmax(self) -> int:
        """The largest value of ``dtype``: 127 or 255."""
        return _RANGES[self.dtype][1]

    @classmethod
    def of(cls, scale: Any, zero_point: Any = 0) -> QParams:
        """Return the parameters from NumPy scalars or one-element arrays, as ONNX files store them.

        ``dtype`` is the dtype of ``zero_point`` (int8 or uint8); for a Python int it is int8.

        >>> QParams.of(np.float32(0.5), np.uint8(128))
        QParams(scale=0.5, zero_point=128, dtype='uint8')
        """
        scale, zero_point = _single(scale, "scale"), _single(zero_point, "zero_point")
        if not isinstance(zero_point, np.generic):
            return cls(scale, zero_point)
        if zero_point.dtype.name not in _RANGES:
            raise DTypeError(f"QParams: zero_point has dtype {zero_point.dtype}; it must be int8 or uint8.")
        return cls(scale, int(zero_point), cast(QDType, zero_point.dtype.name))

    @classmethod
    @checked
    def from_range(cls, lo: float, hi: float, dtype: QDType = "int8", symmetric: bool = False) -> QParams:
        """Return the parameters that map the real range [lo, hi] to the whole range of ``dtype``.

        The range is first widened to contain 0, so that 0.0 stays exact. Every step is rounded to float32:

        - asymmetric (ONNX DynamicQuantizeLinear): ``scale = (hi - lo) / 255`` and
          ``zero_point = saturate(round_half_even(qmin - lo / scale))``;
        - symmetric: ``scale = max(-lo, hi) / 127``, zero point 0 (int8) or 128 (uint8).

        The range [0, 0] gets the scale 1.0; a scale below 2**-126 is raised to 2**-126.
        Raises ArgumentError if lo > hi, or if a bound or the width is not a finite float32.

        >>> QParams.from_range(-1.0, 1.0, symmetric=True).zero_point
        0
        >>> QParams.from_range(0.0, 2.55, "uint8")
        QParams(scale=0.009999999776482582, zero_point=0, dtype='uint8')
        """
        if not isinstance(dtype, str) or dtype not in get_args(QDType):
            raise DTypeError(f'QParams: dtype is {shown(dtype)}; it must be "int8" or "uint8".')
        with np.errstate(over="ignore"):
            low, high = min(np.float32(lo), np.float32(0)), max(np.float32(hi), np.float32(0))
            width = np.float32(max(-low, high) if symmetric else high - low)
        if not (lo <= hi and np.isfinite(width)):
            raise ArgumentError(
                f"QParams: the range is [{lo}, {hi}]; it needs lo <= hi and a finite float32 width."
            )
        steps = np.float32(127 if symmetric else 255)
        scale = max(width / steps, np.float32(SMALLEST_SCALE)) if width else np.float32(1)
        qmin, qmax = _RANGES[dtype]
        if symmetric:
            return cls(float(scale), 0 if dtype == "int8" else 128, dtype)
        zero_point = np.rint(np.float32(qmin) - low / scale)
        return cls(float(scale), int(min(max(zero_point, qmin), qmax)), dtype)


RULES |= {
    "QParams": Rule(of(QParams), "a QParams"),
    "QParams | None": Rule(optional(of(QParams)), "a QParams or None"),
    "QParams | Literal['dynamic'] | None": Rule(optional(of(QParams, str)), "a QParams, 'dynamic' or None"),
    "Sequence[QParams | None] | None": Rule(
        optional(sequence(optional(of(QParams)))), "a sequence of QParams, or None"
    ),
}


def check_scales(scale: npt.ArrayLike, channels: int, what: str) -> npt.NDArray[np.float32]:
    """Return the per-channel scales of a tensor as float32 of shape (channels,).

    - scale: one number, or an array (1,) or (channels,).
    - what: the name in error messages ("linear: w_scale").

    Raises DTypeError if the values are not real numbers. Raises ArgumentError, with the channel, for a wrong
    length or for a scale that is not finite or is below 2**-126 as a float32.

    >>> check_scales(0.5, 3, "w_scale")
    array([0.5, 0.5, 0.5], dtype=float32)
    """
    given = np.asarray(scale)
    if given.dtype.kind not in "fiu":
        raise DTypeError(f"{what} has dtype {given.dtype}; scales must be real numbers.")
    given = _per_channel(given, channels, what)
    scales = _as_float32(given)
    bad = np.flatnonzero(~are_scales(scales))
    if bad.size:
        channel = int(bad[0])
        raise ArgumentError(
            f"{what}[{channel}] is {given[channel]}; "
            "a scale must be positive, finite and at least 2**-126 (1.18e-38) as a float32."
        )
    return scales


def check_zero_points(
    zero_point: npt.ArrayLike | None, channels: int, dtype: npt.DTypeLike, what: str
) -> npt.NDArray[np.int32]:
    """Return the per-channel zero points of a tensor of ``dtype`` (int8 or uint8), as int32 (channels,).

    zero_point: an integer, an array (1,) or (channels,), or None for 0.

    Raises DTypeError if the values are not integers or have an 8-bit dtype other than ``dtype``. Raises
    ArgumentError for a wrong length or a value outside the range of ``dtype``.

    >>> check_zero_points(-3, 2, np.int8, "w_zero_point")
    array([-3, -3], dtype=int32)
    """
    given, tensor = np.asarray(0 if zero_point is None else zero_point), np.dtype(dtype)
    if given.dtype.kind not in "iu" or (given.dtype.itemsize == 1 and given.dtype != tensor):
        raise DTypeError(
            f"{what} has dtype {given.dtype} but its tensor is {tensor}; give integers of that type."
        )
    given = _per_channel(given, channels, what)
    low, high = _RANGES[tensor.name]
    bad = np.flatnonzero((given < low) | (given > high))
    if bad.size:
        raise ArgumentError(f"{what}[{bad[0]}] is {given[bad[0]]}; {tensor} holds {low} to {high}.")
    return given.astype(np.int32)


def check_bias(bias: npt.NDArray[Any], channels: int, float_output: bool, what: str) -> npt.NDArray[Any]:
    """Return the bias of an int8 operation as int32 or float32 (channels,), in native byte order.

    An int32 bias has the scale ``x_scale * w_scale`` and the zero point 0. A float32 bias must be finite,
    and is allowed only if the output is float32. *what*: the name of the bias in error messages ("linear:
    bias"). Raises DTypeError or ArgumentError.
    """
    allowed: tuple[str, ...] = ("int32", "float32") if float_output else ("int32",)
    if bias.dtype.name not in allowed:
        output = "float32" if float_output else "int8"
        raise DTypeError(
            f"{what} has dtype {bias.dtype}; with {output} output it must be {' or '.join(allowed)}."
        )
    if bias.shape != (channels,):
        raise ArgumentError(
            f"{what} has shape {bias.shape}; it must be ({channels},), one per output channel."
        )
    bad = np.flatnonzero(~np.isfinite(bias))
    if bad.size:
        raise ArgumentError(f"{what}[{bad[0]}] is {bias[bad[0]]}; a bias must be finite.")
    native: npt.NDArray[Any] = bias.astype(bias.dtype.name)
    return native


def _per_channel(values: npt.NDArray[Any], channels: int, what: str) -> npt.NDArray[Any]:
    if values.ndim > 1 or (values.size != 1 and values.shape != (channels,)):
        raise ArgumentError(
            f"{what} has shape {values.shape} but there are {channels} output channels; "
            f"give one number, or one per channel (shape ({channels},))."
        )
    return np.array(np.broadcast_to(values.reshape(-1), (channels,)))


def _as_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    with np.errstate(all="ignore"):  # a number out of range becomes infinite or 0, which `are_scales` refuses
        return np.asarray(values, np.float32)


def are_scales(scales: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Return a Boolean array: True for each number that may be a scale (finite and at least 2**-126)."""
    return np.asarray(np.isfinite(scales) & (scales >= np.float32(SMALLEST_SCALE)))


def _single(value: Any, what: str) -> Any:
    """Return the element of a one-element array as a NumPy scalar, and other objects unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    if value.size != 1:
        raise ArgumentError(
            f"QParams: {what} has shape {value.shape}; a tensor has one, so give one element."
        )
    return value.reshape(-1)[0]


def _scale(scale: Any) -> float:
    if isinstance(scale, (bool, np.bool_)) or not isinstance(scale, (int, float, np.floating, np.integer)):
        kind = type(scale).__name__
        raise DTypeError(f"QParams: scale is {shown(scale)} ({kind}); it must be a real number.")
    try:
        rounded = _as_float32(np.asarray(float(scale)))
    except OverflowError:  # an int beyond the range of float64
        rounded = np.asarray(np.float32(np.inf))
    if not are_scales(rounded):
        raise ArgumentError(
            f"QParams: scale is {shown(scale)}; it must be positive, finite and at least 2**-126 (1.18e-38)"
            " as a float32."
        )
    return float(rounded)


def _zero_point(zero_point: Any, dtype: QDType) -> int:
    if isinstance(zero_point, (bool, np.bool_)) or not isinstance(zero_point, (int, np.integer)):
        kind = type(zero_point).__name__
        raise DTypeError(f"QParams: zero_point is {shown(zero_point)} ({kind}); it must be an integer.")
    if isinstance(zero_point, (np.int8, np.uint8)) and zero_point.dtype.name != dtype:
        raise DTypeError(
            f"QParams: zero_point has dtype {zero_point.dtype} but the tensor is {dtype}; they must be the"
            " same."
        )
    qmin, qmax = _RANGES[dtype]
    if not qmin <= zero_point <= qmax:
        raise ArgumentError(
            f"QParams: zero_point is {shown(int(zero_point))}; {dtype} holds {qmin} to {qmax}."
        )
    return int(zero_point)
