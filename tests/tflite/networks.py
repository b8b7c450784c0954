"""Small networks with random weights, made of the operators that converters write. Each function returns the
bytes of a .tflite file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from .writer import Writer

SAME, VALID = 0, 1
RELU6 = 3


class Network:
    """An int8 network under construction. Each scale fits the range of the values."""

    def __init__(self, seed: int = 0):
        self.w, self.rng = Writer(), np.random.default_rng(seed)

    def input(self, shape: tuple[int, ...], scale: float = 0.02, zero: int = -3) -> int:
        return self.w.tensor(shape, "int8", scale, zero, name="input")

    def facts(self, x: int) -> tuple[tuple[int, ...], float, int]:
        t = self.w.tensors[x]
        return tuple(t["shape"]), t["quantization"]["scale"][0], t["quantization"]["zero_point"][0]

    def activation(self, shape: tuple[int, ...], scale: float, zero: int) -> int:
        return self.w.tensor(shape, "int8", scale, zero)

    def weight(self, shape: tuple[int, ...], axis: int, x_scale: float) -> tuple[int, int]:
        channels = shape[axis]
        scales = self.rng.uniform(0.002, 0.02, channels).astype(np.float32)
        weight = self.w.constant(self.rng.integers(-127, 128, shape).astype(np.int8), scales, axis=axis)
        bias = self.rng.integers(-2000, 2000, channels).astype(np.int32)
        return weight, self.w.constant(bias, scales * np.float32(x_scale))

    def conv(
        self, x: int, channels: int, kernel: int, stride: int = 1, act: int = RELU6, pad: int = SAME
    ) -> int:
        shape, scale, _ = self.facts(x)
        weight, bias = self.weight((channels, kernel, kernel, shape[3]), 0, scale)
        return self._conv(
            "CONV_2D", "Conv2DOptions", 3, x, weight, bias, (channels, kernel, stride, act, pad)
        )

    def depthwise(self, x: int, kernel: int, stride: int = 1, act: int = RELU6, multiplier: int = 1) -> int:
        shape, scale, _ = self.facts(x)
        channels = shape[3] * multiplier
        weight, bias = self.weight((1, kernel, kernel, channels), 3, scale)
        how = (channels, kernel, stride, act, SAME)
        return self._conv(
            "DEPTHWISE_CONV_2D",
            "DepthwiseConv2DOptions",
            3,
            x,
            weight,
            bias,
            how,
            depth_multiplier=multiplier,
        )

    def _conv(self, op, kind, version, x, weight, bias, how, **more):  # type: ignore[no-untyped-def]
        channels, kernel, stride, act, pad = how
        shape, scale, _ = self.facts(x)
        size = [-(-d // stride) if pad == SAME else (d - kernel) // stride + 1 for d in shape[1:3]]
        terms = kernel * kernel * (shape[3] if op == "CONV_2D" else 1)
        y_scale, zero = (
            (6 / 255, -128) if act == RELU6 else (scale * 0.7 * terms**0.5, int(self.rng.integers(-9, 9)))
        )
        y = self.activation((shape[0], *size, channels), y_scale, zero)
        self.w.operator(
            op, [x, weight, bias], [y], kind, version, padding=pad, stride_w=stride, stride_h=stride,
            fused_activation_function=act, **more,
        )  # fmt: skip
        return y

    def add(self, a: int, b: int) -> int:
        shape, scale, _ = self.facts(a)
        y = self.activation(shape, scale * 1.4, int(self.rng.integers(-9, 9)))
        self.w.operator("ADD", [a, b], [y], "AddOptions", 2)
        return y

    def mean(self, x: int) -> int:
        shape, scale, zero = self.facts(x)
        y = self.activation((shape[0], shape[3]), scale * 0.5, zero)
        axes = self.w.constant(np.array([1, 2], np.int32))
        self.w.operator("MEAN", [x, axes], [y], "ReducerOptions", 2)
        return y

    def average(self, x: int, kernel: int, stride: int, pad: int) -> int:
        shape, scale, zero = self.facts(x)
        size = [-(-d // stride) if pad == SAME else (d - kernel) // stride + 1 for d in shape[1:3]]
        y = self.activation((shape[0], *size, shape[3]), scale, zero)
        self.w.operator(
            "AVERAGE_POOL_2D", [x], [y], "Pool2DOptions", 2, padding=pad, stride_w=stride, stride_h=stride,
            filter_width=kernel, filter_height=kernel,
        )  # fmt: skip
        return y

    def reshape(self, x: int, shape: tuple[int, ...]) -> int:
        _, scale, zero = self.facts(x)
        y = self.activation(shape, scale, zero)
        sizes = self.w.constant(np.array(shape, np.int32))
        self.w.operator("RESHAPE", [x, sizes], [y], "ReshapeOptions", new_shape=list(shape))
        return y

    def dense(self, x: int, units: int) -> int:
        shape, scale, _ = self.facts(x)
        weight, bias = self.weight((units, shape[-1]), 0, scale)
        y = self.activation((shape[0], units), scale * 0.6 * shape[-1] ** 0.5, 11)
        self.w.operator("FULLY_CONNECTED", [x, weight, bias], [y], "FullyConnectedOptions", 4)
        return y

    def softmax(self, x: int) -> int:
        y = self.activation(self.facts(x)[0], 1 / 256, -128)
        self.w.operator("SOFTMAX", [x], [y], "SoftmaxOptions", 2, beta=1.0)
        return y


def mobilenet_v1(size: int = 33, batch: int = 1) -> bytes:
    """Return a network of separable convolutions, an average over the whole image, and a 1x1 convolution
    that classifies."""
    n = Network(1)
    x = first = n.input((batch, size, size, 3))
    x = n.conv(x, 8, 3, 2)
    for channels, stride in ((16, 1), (24, 2), (24, 1), (32, 2)):
        x = n.conv(n.depthwise(x, 3, stride), channels, 1)
    kernel = n.facts(x)[0][1]
    x = n.average(x, kernel, 1, VALID)
    x = n.reshape(n.conv(x, 17, 1, act=0), (batch, 17))
    return n.w.file([first], [n.softmax(x)])


def mobilenet_v2(size: int = 35, batch: int = 1) -> bytes:
    """Return a network of inverted residual blocks with sums, a mean, and a fully connected layer."""
    n = Network(2)
    x = first = n.input((batch, size, size, 3))
    x = n.conv(x, 16, 3, 2)
    for channels, stride in ((16, 1), (24, 2), (24, 1), (24, 1), (40, 2), (40, 1)):
        before = x
        x = n.conv(x, 3 * n.facts(x)[0][3], 1)
        x = n.conv(n.depthwise(x, 3, stride), channels, 1, act=0)
        if n.facts(x)[0] == n.facts(before)[0]:
            x = n.add(before, x)
    return n.w.file([first], [n.dense(n.mean(n.conv(x, 56, 1)), 21)])


@dataclasses.dataclass(frozen=True)
class Made:
    """A function that makes a network (``make``), and the number of values of the network that the device
    transposes (``transposes``)."""

    make: Callable[[], bytes]
    transposes: int = 1

    def __call__(self) -> bytes:
        return self.make()


NETWORKS = {"mobilenet_v1": Made(mobilenet_v1), "mobilenet_v2": Made(mobilenet_v2)}
