"""Models of one operator with random attributes, for each operator in the tables of docs/tflite.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .writer import Writer

Random = np.random.Generator
Array = npt.NDArray[Any]
Case = tuple[bytes, list[Array]]
SAME, VALID = 0, 1
ACTIVATIONS = (0, 1, 2, 3)  # NONE, RELU, RELU_N1_TO_1, RELU6


class One:
    """A model under construction, with arrays for its inputs."""

    def __init__(self, rng: Random, dtype: str = "int8"):
        self.w, self.rng, self.dtype = Writer(), rng, dtype
        self.inputs: list[int] = []
        self.arrays: list[Array] = []

    def scale(self, low: float = -3, high: float = 0) -> float:
        """Return a random scale, log-uniform from 10**low to 10**high."""
        return float(np.float32(10 ** self.rng.uniform(low, high)))

    def zero(self, dtype: str = "") -> int:
        """Return a random zero point, often the least or the largest value of the type."""
        info = np.iinfo(dtype or self.dtype)
        return int(self.rng.choice([info.min, info.max, self.rng.integers(info.min, info.max + 1)]))

    def shape(self, low: int = 1, high: int = 9) -> tuple[int, ...]:
        """Return a random image shape (N, H, W, C)."""
        size = self.rng.integers(low, high, 2)
        return (int(self.rng.integers(1, 3)), int(size[0]), int(size[1]), int(self.rng.integers(1, 20)))

    def numbers(self, shape: tuple[int, ...]) -> Array:
        info = np.iinfo(self.dtype)
        return self.rng.integers(info.min, info.max + 1, shape).astype(self.dtype)

    def input(self, shape: tuple[int, ...], scale: float, zero: int, array: Array | None = None) -> int:
        self.inputs.append(self.w.tensor(shape, self.dtype, scale, zero))
        self.arrays.append(self.numbers(shape) if array is None else array)
        return self.inputs[-1]

    def output(self, shape: tuple[int, ...], scale: float, zero: int, dtype: str = "") -> int:
        return self.w.tensor(shape, dtype or self.dtype, scale, zero)

    def case(self, *outputs: int) -> Case:
        return self.w.file(self.inputs, list(outputs)), self.arrays


def window(size: int, kernel: int, stride: int, dilation: int, padding: int) -> int:
    """Return the number of positions of a window along an axis of *size* elements."""
    reach = (kernel - 1) * dilation + 1
    return -(-size // stride) if padding == SAME else (size - reach) // stride + 1


def conv(rng: Random, dtype: str, depthwise: bool = False) -> Case:
    """Return a model of a CONV_2D or DEPTHWISE_CONV_2D with random kernel, stride, dilation, padding,
    groups and activation, and one weight scale or one per channel."""
    one = One(rng, dtype)
    x_shape, kernel = one.shape(5, 12), [int(k) for k in rng.integers(1, 4, 2)]
    stride, padding = [int(s) for s in rng.integers(1, 4, 2)], int(rng.integers(0, 2))
    dilation = [int(d) for d in rng.integers(1, 3, 2)] if stride == [1, 1] else [1, 1]
    multiplier = int(rng.integers(1, 4)) if depthwise else 1
    channels = x_shape[3] * multiplier if depthwise else int(rng.integers(1, 30))
    sizes = [window(x_shape[1 + i], kernel[i], stride[i], dilation[i], padding) for i in (0, 1)]
    x_scale = one.scale()
    w_shape = (1, *kernel, channels) if depthwise else (channels, *kernel, x_shape[3])
    per_channel = dtype == "int8" and bool(rng.integers(0, 2))
    scales = np.float32(10 ** rng.uniform(-3, -1, channels if per_channel else 1))
    terms = kernel[0] * kernel[1] * (1 if depthwise else x_shape[3])
    y_scale = float(np.float32(x_scale * scales.mean() * 40 * terms**0.5))
    x = one.input(x_shape, x_scale, one.zero())
    weight = one.w.tensor(
        w_shape, dtype, scales, 0 if dtype == "int8" else int(rng.integers(0, 256)),
        3 if depthwise else 0, one.numbers(w_shape),
    )  # fmt: skip
    bias = rng.integers(-5000, 5000, channels).astype(np.int32)
    inputs = [x, weight, one.w.constant(bias, scales * np.float32(x_scale))]
    y = one.output((x_shape[0], *sizes, channels), y_scale, one.zero())
    more = {"depth_multiplier": multiplier} if depthwise else {}
    one.w.operator(
        "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", inputs, [y],
        "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions", 3, padding=padding, stride_h=stride[0],
        stride_w=stride[1], dilation_h_factor=dilation[0], dilation_w_factor=dilation[1],
        fused_activation_function=int(rng.choice(ACTIVATIONS)), **more,
    )  # fmt: skip
    return one.case(y)


def depthwise(rng: Random, dtype: str) -> Case:
    return conv(rng, dtype, depthwise=True)


def dense(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    keep, rows, k, n = bool(rng.integers(0, 2)), int(rng.integers(1, 9)), *map(int, rng.integers(1, 70, 2))
    shape = (rows, int(rng.integers(1, 4)), k) if keep or rng.integers(0, 2) else (rows, k)
    x_scale, w_scale = one.scale(), one.scale(-3, -1)
    per_channel = dtype == "int8" and bool(rng.integers(0, 2))
    scales = np.float32(10 ** rng.uniform(-3, -1, n)) if per_channel else np.float32([w_scale])
    x = one.input(shape, x_scale, one.zero())
    zero = 0 if dtype == "int8" else int(rng.integers(0, 256))
    inputs = [x, one.w.tensor((n, k), dtype, scales, zero, 0, one.numbers((n, k)))]
    if rng.integers(0, 2):
        bias = rng.integers(-5000, 5000, n).astype(np.int32)
        inputs.append(one.w.constant(bias, scales * np.float32(x_scale)))
    y_shape = (*shape[:-1], n) if keep else (int(np.prod(shape)) // k, n)
    y = one.output(y_shape, float(np.float32(x_scale * scales.mean() * 40 * k**0.5)), one.zero())
    one.w.operator(
        "FULLY_CONNECTED", inputs, [y], "FullyConnectedOptions", 5, keep_num_dims=int(keep),
        fused_activation_function=int(rng.choice(ACTIVATIONS)),
    )  # fmt: skip
    return one.case(y)


def binary(op: str, low: float = -2, high: float = 3) -> Callable[[Random, str], Case]:
    """Return a function that makes models of an ADD, SUB or MUL. The scale of y is about the scale that its
    range needs, times 2**e with a random e from *low* to *high*."""

    def make(rng: Random, dtype: str) -> Case:
        one = One(rng, dtype)
        shape, a_scale = one.shape(), one.scale()
        b_scale = float(np.float32(a_scale * 2 ** rng.uniform(-4, 4)))
        larger = a_scale * b_scale * 200 if op == "MUL" else max(a_scale, b_scale)
        y_scale = float(np.float32(larger * 2 ** rng.uniform(low, high)))
        a = one.input(shape, a_scale, one.zero())
        if rng.integers(0, 3):
            b = one.input(tuple(shape if rng.integers(0, 2) else (1, 1, 1, shape[3])), b_scale, one.zero())
        else:
            b = one.w.tensor((shape[3],), dtype, b_scale, one.zero(), data=one.numbers((shape[3],)))
        y = one.output(shape, y_scale, one.zero())
        one.w.operator(
            op, [a, b], [y], f"{op.title()}Options", 2, fused_activation_function=int(rng.choice(ACTIVATIONS))
        )
        return one.case(y)

    return make


def all_numbers(one: One) -> Array:
    """Return an image with all 256 values of the type."""
    info = np.iinfo(one.dtype)
    return np.arange(info.min, info.max + 1).astype(one.dtype).reshape(1, 4, 16, 4)


def unary(
    op: str, kind: str = "", version: int = 1, spread: float = 6, least: float | None = None, **options: Any
) -> Callable[[Random, str], Case]:
    """Return a function that makes models of the element-wise operator *op*, applied to all 256 values. The
    scale of y is the scale of x times 2**e, with a random e from *least* (by default -*spread*) to
    *spread*."""
    least = -spread if least is None else least

    def make(rng: Random, dtype: str) -> Case:
        one = One(rng, dtype)
        scale = one.scale(-2.5, 0)
        x = one.input((1, 4, 16, 4), scale, one.zero(), all_numbers(one))
        y = one.output((1, 4, 16, 4), float(np.float32(scale * 2 ** rng.uniform(least, spread))), one.zero())
        given = {
            k: float(np.float32(rng.uniform(*v))) if isinstance(v, tuple) else v for k, v in options.items()
        }
        one.w.operator(op, [x], [y], kind, version, **given)
        return one.case(y)

    return make


def _fixed(op: str, scale: float, zero: int) -> Callable[[Random, str], Case]:
    """Return a function that makes models of LOGISTIC, TANH or SOFTMAX, whose results have a fixed scale
    and zero point."""

    def make(rng: Random, dtype: str) -> Case:
        one = One(rng, dtype)
        moved = 128 if dtype == "uint8" else 0
        if op == "SOFTMAX":
            shape = (int(rng.integers(1, 40)), int(rng.integers(1, 200)))
            x = one.input(shape, one.scale(-2.5, 0), one.zero())
        else:
            x = one.input((1, 4, 16, 4), one.scale(-2.5, 0), one.zero(), all_numbers(one))
        y = one.output(one.arrays[0].shape, scale, zero + moved)
        beta = {"beta": float(rng.choice([1.0, 0.5, 2.0]))} if op == "SOFTMAX" else {}
        one.w.operator(op, [x], [y], "SoftmaxOptions" if beta else "", 2, **beta)
        return one.case(y)

    return make


def _pool(op: str) -> Callable[[Random, str], Case]:
    def make(rng: Random, dtype: str) -> Case:
        one = One(rng, dtype)
        shape, padding = one.shape(4, 12), int(rng.integers(0, 2))
        kernel = [int(k) for k in rng.integers(1, 5, 2)]
        stride = [int(s) for s in rng.integers(1, 4, 2)]
        if rng.integers(0, 4) == 0:
            kernel, padding = list(shape[1:3]), VALID
        scale, zero = one.scale(), one.zero()
        sizes = [window(shape[1 + i], kernel[i], stride[i], 1, padding) for i in (0, 1)]
        x, y = one.input(shape, scale, zero), one.output((shape[0], *sizes, shape[3]), scale, zero)
        one.w.operator(
            op, [x], [y], "Pool2DOptions", 2, padding=padding, stride_h=stride[0], stride_w=stride[1],
            filter_height=kernel[0], filter_width=kernel[1],
            fused_activation_function=int(rng.choice(ACTIVATIONS)),
        )  # fmt: skip
        return one.case(y)

    return make


def mean(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, keep, scale = one.shape(), int(rng.integers(0, 2)), one.scale()
    x = one.input(shape, scale, one.zero())
    y_shape = (shape[0], 1, 1, shape[3]) if keep else (shape[0], shape[3])
    y = one.output(y_shape, float(np.float32(scale * 2 ** rng.uniform(-3, 2))), one.zero())
    axes = one.w.constant(np.array([[1, 2], [2, 1], [-2, -3]][rng.integers(0, 3)], np.int32))
    one.w.operator("MEAN", [x, axes], [y], "ReducerOptions", 2, keep_dims=keep)
    return one.case(y)


def concatenation(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, axis, scale, zero = one.shape(), int(rng.integers(0, 4)), one.scale(), one.zero()
    parts = []
    for _ in range(int(rng.integers(1, 4))):
        own = list(shape)
        own[axis] = int(rng.integers(1, 9))
        parts.append(tuple(own))
    xs = [one.input(part, scale, zero) for part in parts]
    whole = list(shape)
    whole[axis] = sum(part[axis] for part in parts)
    y = one.output(tuple(whole), scale, zero)
    one.w.operator(
        "CONCATENATION", xs, [y], "ConcatenationOptions", 2, axis=axis - 4 * int(rng.integers(0, 2))
    )
    return one.case(y)


def pad(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, scale, zero = one.shape(), one.scale(), one.zero()
    margins = rng.integers(0, 4, (4, 2)).astype(np.int32)
    margins[0] = 0
    y_shape = tuple(int(d) for d in np.array(shape) + margins.sum(1))
    inputs = [one.input(shape, scale, zero), one.w.constant(margins)]
    second = bool(rng.integers(0, 2))
    if second:
        inputs.append(one.w.tensor((), dtype, scale, zero, data=one.numbers(())))
    y = one.output(y_shape, scale, zero)
    one.w.operator("PADV2" if second else "PAD", inputs, [y], "" if second else "PadOptions", 2)
    return one.case(y)


def transpose(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, scale, zero, perm = one.shape(), one.scale(), one.zero(), rng.permutation(4).astype(np.int32)
    inputs = [one.input(shape, scale, zero), one.w.constant(perm)]
    y = one.output(tuple(shape[p] for p in perm), scale, zero)
    one.w.operator("TRANSPOSE", inputs, [y], "TransposeOptions", 2)
    return one.case(y)


def reshape(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, scale, zero = one.shape(), one.scale(), one.zero()
    wanted = np.array([shape[0] * shape[1], -1], np.int32)
    inputs = [one.input(shape, scale, zero), one.w.constant(wanted)]
    y = one.output((shape[0] * shape[1], shape[2] * shape[3]), scale, zero)
    one.w.operator("RESHAPE", inputs, [y], "ReshapeOptions")
    return one.case(y)


def quantize_floats(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    scale, zero = one.scale(), one.zero()
    one.dtype = "float32"
    halves = ((np.arange(-150, 150) + 0.5) * np.float32(scale)).astype(np.float32)
    more = rng.normal(0, 80 * scale, 700).astype(np.float32)
    array = np.concatenate([halves, more]).reshape(1, 10, 10, 10)
    one.inputs.append(one.w.tensor(array.shape, "float32"))
    one.arrays.append(array)
    y = one.output(array.shape, scale, zero, dtype)
    one.w.operator("QUANTIZE", one.inputs, [y], "")
    return one.case(y)


def dequantize(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    x = one.input((1, 4, 16, 4), one.scale(), one.zero(), all_numbers(one))
    y = one.w.tensor((1, 4, 16, 4), "float32")
    one.w.operator("DEQUANTIZE", [x], [y], "", 2)
    return one.case(y)


OPERATORS: dict[str, Callable[[Random, str], Case]] = {
    "CONV_2D": conv, "DEPTHWISE_CONV_2D": depthwise, "FULLY_CONNECTED": dense,
    "ADD": binary("ADD"), "SUB": binary("SUB"), "MUL": binary("MUL"),
    "LOGISTIC": _fixed("LOGISTIC", 1 / 256, -128), "TANH": _fixed("TANH", 1 / 128, 0),
    "SOFTMAX": _fixed("SOFTMAX", 1 / 256, -128), "ELU": unary("ELU"), "GELU": unary("GELU", "GeluOptions"),
    "GELU-tanh": unary("GELU", "GeluOptions", approximate=1),
    "LEAKY_RELU": unary("LEAKY_RELU", "LeakyReluOptions", 2, alpha=(0.01, 0.9)),
    "RELU": unary("RELU", "", 2), "RELU6": unary("RELU6", "", 2), "RELU_N1_TO_1": unary("RELU_N1_TO_1"),
    "QUANTIZE": unary("QUANTIZE", "", 2), "QUANTIZE-floats": quantize_floats, "DEQUANTIZE": dequantize,
    "MAX_POOL_2D": _pool("MAX_POOL_2D"), "AVERAGE_POOL_2D": _pool("AVERAGE_POOL_2D"), "MEAN": mean,
    "HARD_SWISH": unary("HARD_SWISH", spread=3), "ABS": unary("ABS", "", 2),
    "CONCATENATION": concatenation, "PAD": pad, "TRANSPOSE": transpose, "RESHAPE": reshape,
}  # fmt: skip
