"""Run the operators whose time is the memory traffic (`vkq.problem.mover`), and compute their expected
results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq import reference
from vkq.kernels.repack import repacked
from vkq.layout.extent import BLOCKED, IMAGE
from vkq.numerics import quantize as numbers
from vkq.numerics.elementwise import binary
from vkq.numerics.qparams import QParams
from vkq.ops import elementwise, operand, pool, quantize, resize, shape, softmax, table
from vkq.ops.conv2d import Conv2d
from vkq.ops.conv_transpose2d import ConvTranspose2d
from vkq.ops.explain import explain
from vkq.ops.layer import Layer
from vkq.problem.mover import LAYOUTS, Mover
from vkq.problem.window import Window
from vkq.reference import operators
from vkq.reference.softmax import softmax as softmax_reference
from vkq.runtime.builder import Builder, Value
from vkq.runtime.device import Device
from vkq.runtime.tensor import Tensor

Array = npt.NDArray[Any]
X, Y, PROBABILITY = QParams(0.05, 3), QParams(0.07, -5), QParams(1 / 256, -128)
# The scale of a convolution's weight, and the quantization parameters of its result.
W_SCALE, SUM = 0.01, QParams(0.3, -5)
ENTRIES = np.random.default_rng(1).integers(-128, 128, 256, dtype=np.int8)
ONE_AROUND = [(0, 0), (0, 0), (1, 1), (1, 1)]
TO_NHWC = (0, 2, 3, 1)


def to_other(b: Builder, x: Value) -> Value:
    return repacked(b, x, IMAGE if x.spec.layout == BLOCKED else BLOCKED)


def images(p: Mover, x: Array) -> Window:
    return Window.of(p.op, x.shape, p.k, p.stride, p.k // 2, 1, False)


def weights(p: Mover) -> Array:
    """Return the weights of a convolution."""
    shape = (p.c, 1, p.k, p.k) if p.op == "depthwise_conv2d" else (p.c, p.c, 2, 2)
    return np.random.default_rng(p.c).integers(-128, 128, shape, dtype=np.int8)


def windows(p: Mover) -> dict[str, Any]:
    """Return stride, padding and groups of a depthwise convolution, as keyword arguments."""
    return {"stride": p.stride, "padding": p.k // 2, "groups": p.c}


LAYERS: dict[str, Callable[[Mover, Device], Layer[Any]]] = {
    "depthwise_conv2d": lambda p, device: Conv2d(
        weights(p), W_SCALE, x_qparams=X, y_qparams=SUM, device=device, **windows(p)
    ),
    "conv_transpose2x2": lambda p, device: ConvTranspose2d(
        weights(p), W_SCALE, x_qparams=X, y_qparams=SUM, device=device, stride=2
    ),
}


@dataclass(frozen=True)
class Operation:
    """The functions that run one operator and compute its expected result.

    ``run(problem, x, z)`` runs the operator on the Tensor x. z is the second operand, the layer of `LAYERS`
    or None. ``expected(problem, x, z)`` returns the expected result for the arrays x and z.
    """

    run: Callable[[Mover, Any, Any], Tensor]
    expected: Callable[[Mover, Array, Array], Array]


OPERATIONS: dict[str, Operation] = {
    "quantize": Operation(
        lambda p, x, z: quantize.quantize(x, X, layout=LAYOUTS[p.block]),
        lambda p, x, z: numbers.quantize(x, X),
    ),
    "dequantize": Operation(
        lambda p, x, z: quantize.dequantize(x), lambda p, x, z: numbers.dequantize(x, X),
    ),
    "repack": Operation(
        lambda p, x, z: operand.apply("repack", to_other, {"x": x}, (), None), lambda p, x, z: x
    ),
    "add": Operation(
        lambda p, x, z: elementwise.add(x, z, Y), lambda p, x, z: binary("add", x, z, X, X, Y),
    ),
    "mul": Operation(
        lambda p, x, z: elementwise.mul(x, z, Y), lambda p, x, z: binary("mul", x, z, X, X, Y),
    ),
    "gate": Operation(
        lambda p, x, z: elementwise.mul(x, z, Y), lambda p, x, z: binary("mul", x, z, X, X, Y),
    ),
    "lookup": Operation(
        lambda p, x, z: table.lookup(x, ENTRIES), lambda p, x, z: operators.lookup(x, ENTRIES)
    ),
    "max_pool2d": Operation(
        lambda p, x, z: pool.max_pool2d(x, p.k, p.stride, p.k // 2),
        lambda p, x, z: operators.max_pool2d(x, images(p, x)),
    ),
    "avg_pool2d": Operation(
        lambda p, x, z: pool.avg_pool2d(x, p.k, p.stride, p.k // 2, y_qparams=Y),
        lambda p, x, z: operators.avg_pool2d(x, images(p, x), X, Y, True),
    ),
    "global_avg_pool2d": Operation(
        lambda p, x, z: pool.global_avg_pool2d(x, y_qparams=Y),
        lambda p, x, z: operators.global_avg_pool(x, X, Y),
    ),
    "resize": Operation(
        lambda p, x, z: resize.resize(x, scale=2), lambda p, x, z: x.repeat(2, 2).repeat(2, 3),
    ),
    "concat": Operation(
        lambda p, x, z: shape.concat([x, z], 1), lambda p, x, z: np.concatenate([x, z], 1),
    ),
    "pad": Operation(
        lambda p, x, z: shape.pad(x, ONE_AROUND),
        lambda p, x, z: np.pad(x, ONE_AROUND, constant_values=X.zero_point),
    ),
    "transpose": Operation(
        lambda p, x, z: shape.transpose(x, TO_NHWC), lambda p, x, z: x.transpose(TO_NHWC).copy()
    ),
    "softmax": Operation(
        lambda p, x, z: softmax.softmax(x, -1, PROBABILITY),
        lambda p, x, z: softmax_reference(x, X, -1, PROBABILITY),
    ),
    "depthwise_conv2d": Operation(
        lambda p, x, z: z(x),
        lambda p, x, z: reference.conv2d(x, weights(p), x=X, w_scale=W_SCALE, y=SUM, **windows(p)),
    ),
    "conv_transpose2x2": Operation(
        lambda p, x, z: z(x),
        lambda p, x, z: reference.conv_transpose2d(x, weights(p), x=X, w_scale=W_SCALE, y=SUM, stride=2),
    ),
}  # fmt: skip


def activations(p: Mover) -> Array:
    """Return the input x of a problem: random values with a fixed seed."""
    rng = np.random.default_rng([p.n, p.c, p.h, p.w])
    if p.op == "quantize":
        return rng.normal(0, 4, p.x_shape).astype(np.float32)
    return rng.integers(-128, 128, p.x_shape, dtype=np.int8)


def second_operand(p: Mover) -> Array:
    """Return the second operand, with random values; an empty array if the operator has only one operand."""
    rng = np.random.default_rng([p.w, p.h, p.c, p.n])
    return rng.integers(-128, 128, p.z_shape, dtype=np.int8)


def expected(p: Mover, x: Array) -> Array:
    return np.ascontiguousarray(OPERATIONS[p.op].expected(p, x, second_operand(p)))


class MoverLayer:
    """An operator and its second operand, which is on the device. The class has the interface of a layer."""

    def __init__(self, p: Mover, device: Device):
        self.problem, self.device, self.run = p, device, OPERATIONS[p.op].run
        self.z: Any = self.tensor(second_operand(p)) if any(p.z_shape) else None
        if p.op in LAYERS:
            self.z = LAYERS[p.op](p, device)

    def tensor(self, x: Array) -> Tensor:
        """Return an operand on the device, in the problem's layout."""
        if x.dtype == np.float32:
            return Tensor.from_numpy(x, self.device)
        rows = x.ndim == 2 and self.problem.block == 4  # True for the layout kPackedInt8_4H4W
        return Tensor.from_numpy(x, self.device, None if rows else LAYOUTS[self.problem.block], X)

    def __call__(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self.run(self.problem, x, self.z)
        return self.run(self.problem, self.tensor(x), self.z).numpy()

    def choice(self) -> Any:
        """Return an object with the path "memory": no arithmetic ceiling limits these operators."""
        return SimpleNamespace(path="memory")

    def explain(self, x_shape: Any) -> Any:
        """Return an object with the path and the shader variants."""
        x = self.tensor(activations(self.problem))
        return SimpleNamespace(path="memory", variants=explain(self, x).variants)
