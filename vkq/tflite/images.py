"""Pools, means, softmax and resizing of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ModelError
from ..numerics.qparams import QParams
from .arithmetic import bounds_of, clamped, every, stored
from .file import FileOperator
from .layers import BYTES, activated, real_range, strides, window_padding
from .lowering import Lowering, Unsupported
from .schema import VALID

MOST_TAPS = 22  # of an average whose float32 sums are exact with the slope below
SLOPE_BITS = 17  # of a float32: what is left for the slope beside 7 bits of a number


def _window(
    low: Lowering, operator: FileOperator
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int, int, int]]:
    """Kernel, stride and padding of a pool."""
    o, shape = operator.options, low.shape(operator.inputs[0])
    kernel, (stride, _) = (o["filter_height"], o["filter_width"]), strides(operator)
    if min(kernel) < 1 or len(shape) != 4:
        raise ModelError(f"{operator}: its filter is {kernel} and x has shape {shape}")
    return kernel, stride, window_padding(o["padding"], (shape[1], shape[2]), kernel, stride)


def _pool(low: Lowering, operator: FileOperator, op: str, activation: str, **more: Any) -> None:
    """A pool as ONNX has it, then the bounds of its activation."""
    (x, *_), y = operator.inputs, operator.outputs[0]
    kernel, stride, padding = _window(low, operator)
    name = low.emit(op, [low.first_of(x)], kernel_shape=kernel, strides=stride, pads=padding, **more)
    low.give(y, _bounded(low, name, operator, activation), first=True)


def _bounded(low: Lowering, name: str, operator: FileOperator, activation: str) -> str:
    limits = real_range(operator, activation)
    if low.dtype(operator.outputs[0]) not in BYTES:
        return activated(low, name, limits)
    q = low.q(operator.outputs[0])
    found = bounds_of(limits, q)
    if found is None:
        return name
    return low.emit("lookup", [name], table=clamped(stored(every(q), q), found, q))


def _same_parameters(low: Lowering, operator: FileOperator) -> QParams:
    x, y = low.q(operator.inputs[0]), low.q(operator.outputs[0])
    if x != y:
        raise Unsupported(f"x has {x} and y {y}; LiteRT takes equal ones")
    return x


def max_pool(low: Lowering, operator: FileOperator, activation: str) -> None:
    """MAX_POOL_2D."""
    if low.dtype(operator.inputs[0]) in BYTES:
        _same_parameters(low, operator)
    _pool(low, operator, "MaxPool", activation)


def average_pool(low: Lowering, operator: FileOperator, activation: str) -> None:
    """AVERAGE_POOL_2D on 8-bit numbers: LiteRT's own kernel, ``sum / count`` rounded half away from zero, of
    the numbers as they are stored.

    vkq rounds half to even: a scale slightly above 1 moves every half outward, and nothing else so far that
    it is rounded another way. The float32 steps before it are exact."""
    if low.dtype(operator.inputs[0]) not in BYTES:
        return _pool(low, operator, "AveragePool", activation, count_include_pad=0)
    q = _same_parameters(low, operator)
    kernel, stride, padding = _window(low, operator)
    shape, taps = low.shape(operator.inputs[0]), kernel[0] * kernel[1]
    unit = QParams(1.0, 0, q.dtype)
    x = low.first_of(operator.inputs[0])
    if kernel == shape[1:3] and operator.options["padding"] == VALID:
        slope = QParams(1.0 + 2.0**-18 if taps > MOST_TAPS else 1.0 + 2.0**-12, 0, q.dtype)
        name = low.emit("global_avg_pool2d", [x], x=slope, y=unit)
    elif taps <= MOST_TAPS:
        slope = QParams(1.0 + 2.0 ** -(SLOPE_BITS - int(np.ceil(np.log2(taps)))), 0, q.dtype)
        name = low.emit(
            "avg_pool2d", [x], x=slope, y=unit, kernel=kernel, stride=stride, padding=padding,
            ceil_mode=False, count_include_pad=False,
        )  # fmt: skip
    else:
        raise Unsupported(f"its filter has {taps} elements; at most {MOST_TAPS}, or the whole image")
    return low.give(operator.outputs[0], _bounded(low, name, operator, activation), first=True)


def mean(low: Lowering, operator: FileOperator, activation: str) -> None:
    """MEAN: of 8-bit images over both axes of pixels XNNPACK's ``round(sum * m) + zp``."""
    x, y = operator.inputs[0], operator.outputs[0]
    shape, keep = low.shape(x), bool(operator.options.get("keep_dims"))
    axes = sorted({a % max(len(shape), 1) for a in low.numbers(operator.inputs[1], "axes")})
    if low.dtype(x) not in BYTES:
        numbers = low.constant(np.array(axes, np.int64), "axes")
        if axes == [1, 2] and len(shape) == 4:
            name = low.emit("GlobalAveragePool", [low.first_of(x)])
        else:
            return low.give(y, low.emit("ReduceMean", [low.last_of(x), numbers], keepdims=int(keep)))
    elif axes == [1, 2] and len(shape) == 4:
        name = low.emit("global_avg_pool2d", [low.first_of(x)], x=low.q(x), y=low.q(y))
    else:
        raise Unsupported(
            f"its mean of {low.dtype(x)} is over the axes {axes} of {shape}; it must be 1 and 2 of 4"
        )
    if keep:
        return low.give(y, name, first=True)
    sizes = low.constant(np.array((shape[0], shape[3]), np.int64), "shape")
    return low.give(y, low.emit("Reshape", [name, sizes], allowzero=1))


def softmax(low: Lowering, operator: FileOperator, activation: str) -> None:
    """SOFTMAX along the last axis."""
    x, y, beta = operator.inputs[0], operator.outputs[0], np.float32(operator.options["beta"])
    name = low.last_of(x)
    if low.dtype(x) not in BYTES:
        if beta != 1:
            name = low.emit("Mul", [name, low.constant(beta, "beta")])
        return low.give(y, low.emit("Softmax", [name], axis=-1))
    q = low.q(x)
    scaled = QParams(float(np.float32(q.scale) * beta), q.zero_point, q.dtype)
    axis = len(low.shape(x)) - 1
    return low.give(y, low.emit("softmax", [name], x=scaled, y=low.q(y), axis=axis, onnxruntime=False))


RULES: dict[str, Callable[[Lowering, FileOperator, str], None]] = {
    "MAX_POOL_2D": max_pool, "AVERAGE_POOL_2D": average_pool, "MEAN": mean, "SOFTMAX": softmax,
}  # fmt: skip
