"""Functions of one 8-bit value as tables of 256 entries, and the tables of exponentials for softmax."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.arguments import checked
from vkq.errors import ArgumentError
from vkq.numerics.qparams import SMALLEST_SCALE, QParams
from vkq.numerics.quantize import dequantize, quantize

Array = npt.NDArray[Any]
Function = Callable[[npt.NDArray[np.float64]], npt.ArrayLike]
FRACTION_BITS = 30  # fraction bits of the exponentials of softmax; 2**30 stands for 1.0

UNARY: dict[str, Function] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "abs": np.abs,
    "neg": lambda x: -x,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-np.clip(x, -700.0, 700.0))),
    "tanh": np.tanh,
    "exp": lambda x: np.exp(np.minimum(x, 700.0)),
    "silu": lambda x: x / (1.0 + np.exp(-np.clip(x, -700.0, 700.0))),
    "hardsigmoid": lambda x: np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "hardswish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "gelu": lambda x: np.array([0.5 * v * (1.0 + math.erf(v / math.sqrt(2.0))) for v in x.tolist()]),
}


@checked
def leaky_relu(alpha: float) -> Function:
    """Return the function ``x if x >= 0 else alpha * x``, for `table_of` and `unary`. alpha is rounded to
    float32, its type in ONNX files.

    >>> leaky_relu(0.25)(np.array([-2.0, 3.0]))
    array([-0.5,  3. ])
    """
    slope = float(np.float32(alpha))
    return lambda x: np.where(x >= 0, x, slope * x)


@checked
def clamp(low: float, high: float) -> Function:
    """Return the function ``min(max(x, low), high)``, for `table_of` and `unary`. Raises ArgumentError unless
    low <= high.

    >>> clamp(-1.0, 2.5)(np.array([-2.0, 1.0, 3.0]))
    array([-1. ,  1. ,  2.5])
    """
    if not low <= high:
        raise ArgumentError(
            f"clamp: the bounds are {low} and {high}; the first must not be above the second."
        )
    return lambda x: np.clip(x, low, high)


def table_of(function: str | Function, x: QParams, y: QParams) -> Array:
    """Return the 256 results of ``quantize(function(dequantize(x_q)))``; entry i is for x_q = ``x.qmin + i``.

    function: a name in `UNARY`, or a function that maps a float64 array of 256 real numbers to 256 numbers.
    Its results are rounded to float32 and quantized. So the table has the results of DequantizeLinear, the
    correctly rounded function, and QuantizeLinear in sequence. Raises ArgumentError for an unknown name or
    a result of another shape.

    >>> table_of("relu", QParams(0.5), QParams(0.5, -128))[[0, 128, 130, 255]]
    array([-128, -128, -126,   -1], dtype=int8)
    """
    if isinstance(function, str):
        if function not in UNARY:
            raise ArgumentError(
                f"table_of: there is no function {function!r}; there are {', '.join(UNARY)}, or give a"
                " callable."
            )
        function = UNARY[function]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        real = dequantize(np.arange(x.qmin, x.qmax + 1).astype(x.dtype), x).astype(np.float64)
        values = np.asarray(function(real))
        if values.shape != (256,) or values.dtype.kind not in "fiu":
            raise ArgumentError(
                f"table_of: the function gave {values.dtype} {values.shape}; it must give 256 real numbers."
            )
        return quantize(values.astype(np.float32), y)


@functools.lru_cache(maxsize=64)
def exponentials(scale: float) -> npt.NDArray[np.int32]:
    """Return ``round_half_even(exp(-d * scale) * 2**30)`` for d = 0 to 255, with the same bits on every
    host.

    >>> exponentials(1.0)[:2].tolist()
    [1073741824, 395007542]
    """
    from decimal import Context, Decimal  # imported here: only softmax needs it

    context = Context(prec=40, Emin=-999999, Emax=999999)
    steps = [context.multiply(Decimal(-d), Decimal(scale)) for d in range(256)]
    one = Decimal(2**FRACTION_BITS)
    values = [int((context.exp(max(step, Decimal(-1000))) * one).to_integral_value()) for step in steps]
    table = np.array(values, np.int32)
    table.flags.writeable = False
    return table


@functools.lru_cache(maxsize=64)
def exponentials_onnxruntime(scale: float, count: int) -> npt.NDArray[np.float32]:
    """Return the 256 terms of ONNX Runtime's QLinearSoftmax as float32. Term i, computed in float64, is
    ``exp((i - 255) * scale) * min((2**32 - 1) / count, 2**23 - 1)``."""
    factor = min(float(2**32 - 1) / count, float(0x7FFFFF))
    table = np.array([factor * math.exp((i - 255) * scale) for i in range(256)]).astype(np.float32)
    table.flags.writeable = False
    return table


@functools.lru_cache(maxsize=64)
def exponentials_litert(scale: float) -> npt.NDArray[np.float32]:
    """Return the 256 terms of LiteRT's 8-bit softmax as float32. Term i is
    ``exp(float32((i - 255) * scale))``."""
    steps = np.arange(-255, 1).astype(np.float32) * np.float32(scale)
    table = np.array([math.exp(v) for v in steps.tolist()]).astype(np.float32)
    table.flags.writeable = False
    return table


@dataclasses.dataclass(frozen=True)
class SoftmaxTerms:
    """The values that softmax_sum.glslh reads."""

    terms: npt.NDArray[np.float32]  # the 256 terms of the sum
    steps: float  # floor(1 / y_scale) for ONNX Runtime's softmax, y_scale for LiteRT's

    @classmethod
    def of(cls, litert: bool, x_scale: float, y_scale: float, count: int) -> SoftmaxTerms:
        """Return the terms for rows of *count* elements, for LiteRT's softmax if *litert*, else for ONNX
        Runtime's."""
        if litert:
            return cls(exponentials_litert(x_scale), y_scale)
        steps = np.floor(np.float32(1) / np.float32(y_scale))
        return cls(exponentials_onnxruntime(x_scale, count), float(steps))

    @property
    def normal(self) -> bool:
        """True if no term is a subnormal float32."""
        return bool(self.terms.min() >= np.finfo(np.float32).tiny)


MEAN_BITS = 29  # numbers of a fixed-point table are at most 2**29 in magnitude


def fixed_point(table: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int32], int]:
    """Return (integers, exponent): the numbers of a table times ``2**exponent``, rounded, with the largest
    exponent for which no magnitude exceeds 2**29.

    >>> numbers, exponent = fixed_point(np.array([0.5, -1.0], np.float32))
    >>> numbers.tolist(), exponent
    ([268435456, -536870912], 29)
    """
    largest = float(np.abs(table).max(initial=0.0))
    if not np.isfinite(largest):
        raise ArgumentError(f"the table's largest number is {largest}; all must be finite")
    exponent = MEAN_BITS - math.frexp(largest)[1] + (math.frexp(largest)[0] == 0.5) if largest else 0
    return np.rint(np.ldexp(table.astype(np.float64), exponent)).astype(np.int32), exponent


def mean_multiplier(exponent: int, pixels: int, y: QParams) -> float:
    """Return ``2**-exponent / (pixels * y_scale)`` as float32; 0 if it is subnormal, which makes every mean
    y_zp."""
    exact = math.ldexp(1.0, -exponent) / (pixels * y.scale)
    if exact > float(np.finfo(np.float32).max):
        raise ArgumentError(
            f"mean: the multiplier to {y} is {exact}; it must be a float32: use a larger scale"
        )
    return float(np.float32(exact)) if exact >= SMALLEST_SCALE else 0.0
