"""Translates operators on images (pools, resizing), means and other reductions, and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array
from ..numerics.qparams import QParams
from .arithmetic import bounds_of, clamped, every, stored
from .file import FileOperator
from .fixed import exact_sums
from .layers import BYTES, activated, real_range, strides, window_padding
from .lowering import Lowering, Unsupported

LARGEST_SIZE = 1 << 16  # maximum number of rows or columns of a resized image
MOST_TAPS = 22  # maximum number of taps of a window for which the float32 sums of `average_pool` are exact
SLOPE_BITS = 17  # bits of the factor `slope`: a float32 significand has 24 bits, of which a value takes 7


def _window(
    low: Lowering, operator: FileOperator
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int, int, int]]:
    """Return the kernel, stride and padding of a pool."""
    o, shape = operator.options, low.shape(operator.inputs[0])
    kernel, (stride, _) = (o["filter_height"], o["filter_width"]), strides(operator)
    if min(kernel) < 1 or len(shape) != 4:
        raise ModelError(
            f"{operator}: its filter is {kernel} and x has shape {shape}; the filter must be at least 1 x 1,"
            " and x must have 4 axes"
        )
    return kernel, stride, window_padding(o["padding"], (shape[1], shape[2]), kernel, stride)


def _pool(low: Lowering, operator: FileOperator, op: str, activation: str, **more: Any) -> None:
    """Emit ONNX's pool operator *op*, and a Clip or table for the fused activation."""
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
        raise Unsupported(f"x has {x} and y {y}; they must be equal")
    return x


def max_pool(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower MAX_POOL_2D. 8-bit operands must have the parameters of the result."""
    if low.dtype(operator.inputs[0]) in BYTES:
        _same_parameters(low, operator)
    _pool(low, operator, "MaxPool", activation)


def average_pool(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower AVERAGE_POOL_2D. LiteRT's own kernel computes ``sum / count`` of the stored 8-bit integers,
    rounded half away from zero, but vkq rounds half to even.

    So vkq scales the sum by slightly more than 1. This factor moves every tie away from zero, and moves no
    other value so far that it is rounded differently. The float32 steps before the rounding are exact.
    Windows of more than MOST_TAPS elements that do not cover the image are summed and divided in integers
    instead.
    """
    if low.dtype(operator.inputs[0]) not in BYTES:
        return _pool(low, operator, "AveragePool", activation, count_include_pad=0)
    q = _same_parameters(low, operator)
    kernel, stride, padding = _window(low, operator)
    shape, taps = low.shape(operator.inputs[0]), kernel[0] * kernel[1]
    unit = QParams(1.0, 0, q.dtype)
    x = low.first_of(operator.inputs[0])
    if kernel == shape[1:3] and not any(padding):
        slope = QParams(1.0 + 2.0**-18 if taps > MOST_TAPS else 1.0 + 2.0**-12, 0, q.dtype)
        name = low.emit("global_avg_pool2d", [x], x=slope, y=unit)
    elif taps <= MOST_TAPS:
        slope = QParams(1.0 + 2.0 ** -(SLOPE_BITS - int(np.ceil(np.log2(taps)))), 0, q.dtype)
        name = low.emit(
            "avg_pool2d", [x], x=slope, y=unit, kernel=kernel, stride=stride, padding=padding,
            ceil_mode=False, count_include_pad=False,
        )  # fmt: skip
    else:
        name = _divided(low, x, q, kernel, stride, padding)
    return low.give(operator.outputs[0], _bounded(low, name, operator, activation), first=True)


def _divided(
    low: Lowering, x: str, q: QParams, kernel: tuple[int, int], stride: tuple[int, int],
    padding: tuple[int, int, int, int],
) -> str:  # fmt: skip
    """Emit the average of windows of any size: exact int32 sums, divided by the number of the window's
    elements inside the image. Return the result's name."""
    ones = np.ones((low.specs[x].shape[1], 1, *kernel), q.dtype)
    window: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": (1, 1), "groups": len(ones)}
    plain = QParams(1.0, 0, q.dtype)
    total = exact_sums(low, "conv2d", [x, low.constant(ones, "ones")], ones, plain, None, window)
    places = zip(low.specs[total].shape[2:], low.specs[x].shape[2:], kernel, stride, padding[:2], strict=True)
    rows, columns = (_inside(*each) for each in places)
    count = rows[:, None] * columns
    half = [low.constant(v.astype(np.int32), "half") for v in (count // 2, -(count // 2))]
    above = low.emit("GreaterOrEqual", [total, low.constant(np.int32(0), "zero")])
    away = low.emit("Add", [total, low.emit("Where", [above, *half])])
    found = low.emit("Div", [away, low.constant(count.astype(np.int32), "count")])
    return low.emit("Cast", [found], to=q.dtype)


def _inside(positions: int, size: int, taps: int, step: int, before: int) -> Array:
    """Return for each position of a window the number of its *taps* inside an axis of *size* elements. The
    first window begins *before* elements ahead of the axis."""
    first = np.arange(positions) * step - before
    return np.asarray(np.minimum(first + taps, size) - np.maximum(first, 0))


def mean(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower MEAN. For 8-bit values XNNPACK computes ``round(sum * m + (y_zp - x_zp * count * m))``. Here, sum
    is the sum of the stored integers, and ``m = x_scale / y_scale * (1 / count)``."""
    x, y = operator.inputs[0], operator.outputs[0]
    shape, keep = low.shape(x), bool(operator.options.get("keep_dims"))
    axes = _axes(low, operator)
    image, is_bytes = axes == [1, 2] and len(shape) == 4, low.dtype(x) in BYTES
    if image:
        how: dict[str, Any] = {"x": low.q(x), "y": low.q(y), "litert": "mean"} if is_bytes else {}
        name = low.emit("global_avg_pool2d" if is_bytes else "GlobalAveragePool", [low.first_of(x)], **how)
        if keep:
            return low.give(y, name, first=True)
    elif is_bytes:
        how = {"x": low.q(x), "y": low.q(y), "litert": "mean"}
        name = low.emit("global_avg_pool2d", [_as_pixels(low, x, axes)], **how)
    else:
        numbers = low.constant(np.array(axes, np.int64), "axes")
        return low.give(y, low.emit("ReduceMean", [low.last_of(x), numbers], keepdims=int(keep)))
    return _kept(low, operator, name, axes)


def _as_pixels(low: Lowering, x: int, axes: Sequence[int]) -> str:
    """Emit x as an image (1, C, H, 1): the kept axes become channels, and the reduced axes become rows.
    Return the result's name."""
    shape = low.shape(x)
    kept = [i for i in range(len(shape)) if i not in axes]
    name = low.emit("Transpose", [low.last_of(x)], perm=(*kept, *axes))
    count = math.prod(shape[a] for a in axes)
    return low.reshape(name, [1, math.prod(shape[i] for i in kept), count, 1])


def _kept(low: Lowering, operator: FileOperator, name: str, axes: Sequence[int]) -> None:
    """Reshape the reduced value *name* to the shape of the operator's result, and make it the result."""
    shape, keep = low.shape(operator.inputs[0]), bool(operator.options.get("keep_dims"))
    wanted = [1 if i in axes else d for i, d in enumerate(shape) if keep or i not in axes]
    low.give(operator.outputs[0], low.reshape(name, wanted))


def _axes(low: Lowering, operator: FileOperator) -> list[int]:
    rank = max(len(low.shape(operator.inputs[0])), 1)
    return sorted({a % rank for a in low.numbers(operator.inputs[1], "axes")})


def total(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SUM. For 8-bit values XNNPACK uses the formula of MEAN (`mean`) with a count of 1."""
    x, axes = operator.inputs[0], _axes(low, operator)
    if low.dtype(x) not in BYTES:
        numbers, keep = low.constant(np.array(axes, np.int64), "axes"), int(operator.options["keep_dims"])
        name = low.emit("ReduceSum", [low.last_of(x), numbers], keepdims=keep)
        return low.give(operator.outputs[0], name)
    how: dict[str, Any] = {"x": low.q(x), "y": low.q(operator.outputs[0]), "litert": "sum"}
    return _kept(low, operator, low.emit("global_avg_pool2d", [_as_pixels(low, x, axes)], **how), axes)


def extreme(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower REDUCE_MAX or REDUCE_MIN. The minimum of 8-bit values is a maximum between two lookups in a
    table that reverses the order of the values."""
    x, axes, least = operator.inputs[0], _axes(low, operator), operator.op == "REDUCE_MIN"
    if low.dtype(x) not in BYTES:
        numbers, keep = low.constant(np.array(axes, np.int64), "axes"), int(operator.options["keep_dims"])
        name = low.emit("ReduceMin" if least else "ReduceMax", [low.last_of(x), numbers], keepdims=keep)
        return low.give(operator.outputs[0], name)
    q = _same_parameters(low, operator)
    turned = stored(every(q)[::-1], q)
    name = _as_pixels(low, x, axes)
    name = low.emit("lookup", [name], table=turned) if least else name
    name = low.emit("MaxPool", [name], kernel_shape=low.specs[name].shape[2:], strides=(1, 1))
    name = low.emit("lookup", [name], table=turned) if least else name
    return _kept(low, operator, name, axes)


def place(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower ARG_MAX or ARG_MIN along one axis. The result lacks this axis."""
    x, y = operator.inputs[0], operator.outputs[0]
    (axis,) = low.numbers(operator.inputs[1], "axis")
    op = "ArgMax" if operator.op == "ARG_MAX" else "ArgMin"
    name = low.emit(op, [low.last_of(x)], axis=axis % max(len(low.shape(x)), 1), keepdims=0)
    low.give(y, low.emit("Cast", [name], to=low.dtype(y)))


def softmax(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SOFTMAX along the last axis."""
    x, y, beta = operator.inputs[0], operator.outputs[0], np.float32(operator.options["beta"])
    name = low.last_of(x)
    if low.dtype(x) not in BYTES:
        if beta != 1:
            name = low.emit("Mul", [name, low.constant(beta, "beta")])
        return low.give(y, low.emit("Softmax", [name], axis=-1))
    q = low.q(x)
    scaled = QParams(float(np.float32(q.scale) * beta), q.zero_point, q.dtype)
    axis = len(low.shape(x)) - 1
    how: dict[str, Any] = {"x": scaled, "y": low.q(y), "onnxruntime": False, "litert": True}
    return low.give(y, low.emit("softmax", [name], axis=axis, **how))


def bilinear(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower RESIZE_BILINEAR. 8-bit values are interpolated as in XNNPACK, with weights of 11 bits. XNNPACK
    refuses a size that an operator computes; LiteRT's own kernel then uses weights of 10 bits."""
    x, y, o = operator.inputs[0], operator.outputs[0], operator.options
    if low.dtype(x) in BYTES:
        _same_parameters(low, operator)
    computed = low.file.tensors[operator.inputs[1]].data is None
    if computed and low.dtype(x) == "uint8":
        raise Unsupported("x is uint8 and the size is computed; vkq does not know LiteRT's formula for that")
    where = (
        "align_corners" if o["align_corners"] else "half_pixel" if o["half_pixel_centers"] else "asymmetric"
    )
    sizes = _sizes(low, operator)
    name = low.emit(
        "Resize", [low.first_of(x), "", "", sizes], mode="linear", coordinate_transformation_mode=where,
        rounding="fixed_10" if computed else "fixed",
    )  # fmt: skip
    low.give(y, name, first=True)


def _sizes(low: Lowering, operator: FileOperator) -> str:
    shape, size = low.shape(operator.inputs[0]), low.numbers(operator.inputs[1], "size")
    if len(shape) != 4 or len(size) != 2 or not 1 <= min(size) <= max(size) <= LARGEST_SIZE:
        raise ModelError(
            f"{operator}: x has shape {shape} and the size is {size}; x must have 4 axes, and the size two"
            f" numbers from 1 to {LARGEST_SIZE}"
        )
    return low.constant(np.array([shape[0], shape[3], *size], np.int64), "sizes")


def nearest(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower RESIZE_NEAREST_NEIGHBOR. It reads the rows and columns that LiteRT's own kernel selects."""
    x, y, o = operator.inputs[0], operator.outputs[0], operator.options
    if low.dtype(x) in BYTES:
        _same_parameters(low, operator)
    shape, name = low.shape(x), low.first_of(x)
    sizes = low.constants[_sizes(low, operator)].tolist()[2:]
    for axis, (given, out) in enumerate(zip(shape[1:3], sizes, strict=True)):
        at = _nearest(given, out, bool(o["align_corners"]), bool(o["half_pixel_centers"]))
        if not np.array_equal(at, np.arange(given)):
            name = low.emit("Gather", [name, low.constant(at, "rows")], axis=2 + axis)
    low.give(y, name, first=True)


def _nearest(given: int, out: int, corners: bool, half: bool) -> Array:
    ends = 1 if corners and out > 1 else 0
    step = np.float32(given - ends) / np.float32(out - ends)
    at = (np.arange(out, dtype=np.float32) + np.float32(0.5 if half else 0)) * step
    found = np.floor(at + np.float32(0.5 if corners else 0))
    return np.asarray(np.clip(found, 0, given - 1).astype(np.int64))


RULES: dict[str, Callable[[Lowering, FileOperator, str], None]] = {
    "MAX_POOL_2D": max_pool, "AVERAGE_POOL_2D": average_pool, "MEAN": mean, "SUM": total,
    "REDUCE_MAX": extreme, "REDUCE_MIN": extreme,
    "RESIZE_BILINEAR": bilinear,
    "RESIZE_NEAREST_NEIGHBOR": nearest, "ARG_MAX": place, "ARG_MIN": place, "SOFTMAX": softmax,
}  # fmt: skip
