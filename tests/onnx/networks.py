"""Small networks of well-known kinds with random weights, quantized by onnxruntime.quantization."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from vkq.onnx.cpu import cpu_session

ort.set_default_logger_severity(3)
FORMS = {
    "qdq_int8": (QuantFormat.QDQ, QuantType.QInt8, True),
    "qdq_uint8": (QuantFormat.QDQ, QuantType.QUInt8, True),
    "qoperator_uint8": (QuantFormat.QOperator, QuantType.QUInt8, True),
    "qdq_int8_per_tensor": (QuantFormat.QDQ, QuantType.QInt8, False),
}


@dataclasses.dataclass
class Net:
    """A float network under construction. Each method adds a node and returns its result's name."""

    seed: int
    shape: tuple[int, ...] = (1, 3, 16, 16)
    opset: int = 17

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.channels = {"x": self.shape[1]}

    def constant(self, array: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(
        self, kind: str, *inputs: str, channels: int | None = None, count: int = 1, **attributes: Any
    ) -> Any:
        names = [f"{kind.lower()}{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(
            helper.make_node(kind, inputs, names, name=f"{kind}_{len(self.nodes)}", **attributes)
        )
        for name in names:
            self.channels[name] = channels or self.channels.get(inputs[0], 0)
        return names[0] if count == 1 else names

    def weight(self, *shape: int) -> str:
        fan = int(np.prod(shape[1:]))
        return self.constant(self.random.normal(0, (2 / fan) ** 0.5, shape).astype(np.float32))

    def conv(self, x: str, out: int, k: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1) -> str:
        bias = self.constant(self.random.normal(0, 0.1, out).astype(np.float32))
        pad = dilation * (k // 2)
        weight = self.weight(out, self.channels[x] // groups, k, k)
        return str(self.op("Conv", x, weight, bias, channels=out, kernel_shape=[k, k], strides=[stride] * 2,
                           pads=[pad] * 4, group=groups, dilations=[dilation] * 2))  # fmt: skip

    def relu(self, x: str) -> str:
        return str(self.op("Relu", x))

    def relu6(self, x: str) -> str:
        low, high = self.constant(np.float32(0)), self.constant(np.float32(6))
        return str(self.op("Clip", x, low, high))

    def batch_norm(self, x: str) -> str:
        c = self.channels[x]
        r = self.random
        numbers = [r.normal(1, 0.2, c), r.normal(0, 0.3, c), r.normal(0, 0.3, c), r.uniform(0.5, 1.5, c)]
        return str(self.op("BatchNormalization", x, *(self.constant(v.astype(np.float32)) for v in numbers)))

    def concat(self, *xs: str) -> str:
        return str(self.op("Concat", *xs, channels=sum(self.channels[x] for x in xs), axis=1))

    def head(self, x: str, classes: int = 10) -> str:
        pooled = self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)
        bias = self.constant(self.random.normal(0, 0.1, classes).astype(np.float32))
        return str(self.op("Gemm", pooled, self.weight(classes, self.channels[x]), bias, transB=1))

    def model(self, *results: str, batch: str | int | None = None) -> Any:
        shape = list(self.shape) if batch is None else [batch, *self.shape[1:]]
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
            self.weights,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def resnet(net: Net) -> list[str]:
    x = net.op("MaxPool", net.relu(net.conv("x", 8, 7, 2)), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for out, stride in ((8, 1), (16, 2)):
        y = net.conv(net.relu(net.conv(x, out, 3, stride)), out)
        short = x if stride == 1 else net.conv(x, out, 1, stride)
        x = net.relu(net.op("Add", y, short))
    return [net.head(x)]


def mobilenet_v2(net: Net) -> list[str]:
    x = net.relu6(net.conv("x", 8, 3, 2))
    for out, stride in ((8, 1), (12, 2), (12, 1)):
        hidden = net.channels[x] * 3
        y = net.relu6(net.conv(net.relu6(net.conv(x, hidden, 1)), hidden, 3, stride, groups=hidden))
        y = net.conv(y, out, 1)
        x = net.op("Add", x, y) if stride == 1 and net.channels[x] == out else y
    return [net.head(x)]


def mobilenet_v3(net: Net) -> list[str]:
    """Return a network with squeeze-and-excite, and with HardSwish as one node and as several."""
    x = net.op("HardSwish", net.conv("x", 8, 3, 2))
    y = net.conv(x, 16, 1)
    three, six = net.constant(np.float32(3)), net.constant(np.float32(6))
    clipped = net.op("Clip", net.op("Add", y, three), net.constant(np.float32(0)), six)
    y = net.op("Div", net.op("Mul", y, clipped), six)
    y = net.op("HardSwish", net.conv(net.relu(net.conv(y, 16, 1)), 16, 5, 1, groups=16))
    squeezed = net.relu(net.conv(net.op("GlobalAveragePool", y), 4, 1))
    y = net.op("Mul", y, net.op("HardSigmoid", net.conv(squeezed, 16, 1), alpha=1 / 6))
    x = net.op("Add", net.conv(y, 8, 1), x)
    x = net.relu(net.conv(net.op("HardSwish", net.conv(x, 24, 1)), 24, 1))
    mean = net.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    return [net.op("Gemm", mean, net.weight(10, 24), transB=1)]


def efficientnet(net: Net) -> list[str]:
    """Return a network with SiLU as x * sigmoid(x), and with GELU written with Erf."""

    def silu(x: str) -> str:
        return str(net.op("Mul", x, net.op("Sigmoid", x)))

    x = silu(net.conv("x", 8, 3, 2))
    y = silu(net.conv(x, 16, 3, 1, groups=8))
    gate = net.op("Sigmoid", net.conv(silu(net.conv(net.op("GlobalAveragePool", y), 4, 1)), 16, 1))
    y = net.conv(net.op("Mul", gate, y), 12, 1)
    inner = net.op("Erf", net.op("Div", y, net.constant(np.float32(2**0.5))))
    gelu = net.op(
        "Mul",
        net.op("Mul", y, net.op("Add", inner, net.constant(np.float32(1)))),
        net.constant(np.float32(0.5)),
    )
    return [net.head(gelu)]


def inception(net: Net) -> list[str]:
    x = net.relu(net.conv("x", 6, 3, 2))
    a = net.relu(net.conv(x, 5, 1))
    b = net.relu(net.conv(net.relu(net.conv(x, 4, 1)), 7, 3))
    c = net.conv(net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4), 3, 1)
    d = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    return [net.head(net.concat(a, b, c, d))]


def shufflenet(net: Net) -> list[str]:
    x = net.relu(net.conv("x", 8, 3, 2))
    left, right = net.op("Split", x, net.constant(np.array([4, 4], np.int64)), count=2, axis=1, channels=4)
    right = net.relu(net.conv(net.relu(net.conv(right, 4, 1)), 4, 3, groups=4))
    y = net.concat(left, right)
    n, c, h, w = net.shape[0], 8, net.shape[2] // 2, net.shape[3] // 2
    y = net.op("Reshape", y, net.constant(np.array([n, 2, c // 2, h, w], np.int64)))
    y = net.op(
        "Reshape",
        net.op("Transpose", y, perm=[0, 2, 1, 3, 4]),
        net.constant(np.array([n, c, h, w], np.int64)),
        channels=8,
    )
    return [net.head(net.relu(net.conv(y, 12, 1)))]


def densenet(net: Net) -> list[str]:
    x = net.relu(net.conv("x", 6, 3, 2))
    for _ in range(3):
        y = net.conv(net.relu(net.batch_norm(x)), 5, 3)
        x = net.concat(x, y)
    x = net.op("AveragePool", net.relu(net.batch_norm(x)), kernel_shape=[2, 2], strides=[2, 2])
    return [net.head(x)]


def unet(net: Net) -> list[str]:
    """Return a network that downsamples, upsamples by Resize (nearest), and concatenates earlier values."""
    a = net.relu(net.conv("x", 6))
    b = net.relu(net.conv(net.op("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2]), 10))
    c = net.relu(net.conv(net.op("MaxPool", b, kernel_shape=[2, 2], strides=[2, 2]), 12))
    twice = net.constant(np.array([1, 1, 2, 2], np.float32))
    simple = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    up = net.op("Resize", c, "", twice, mode="nearest", channels=12, **simple)
    d = net.relu(net.conv(net.concat(up, b), 8))
    up = net.op("Resize", d, "", twice, mode="nearest", channels=8)
    return [net.conv(net.concat(up, a), 2, 1)]


def attention(net: Net) -> list[str]:
    """Return a network with one-head attention over pixels: products of two activations, softmax and
    transposes."""
    x = net.relu(net.conv("x", 8, 3, 2))
    tokens = net.shape[2] * net.shape[3] // 4

    def flat(name: str) -> str:
        return str(net.op("Reshape", name, net.constant(np.array([net.shape[0], 8, tokens], np.int64))))

    q, k, v = (flat(net.conv(x, 8, 1)) for _ in range(3))
    scores = net.op("MatMul", net.op("Transpose", q, perm=[0, 2, 1]), k)
    weights = net.op("Softmax", scores, axis=-1)
    mixed = net.op("MatMul", v, net.op("Transpose", weights, perm=[0, 2, 1]))
    return [net.op("MatMul", mixed, net.weight(tokens, 5))]


KINDS: dict[str, Callable[[Net], Sequence[str]]] = {
    kind.__name__: kind
    for kind in (
        resnet, mobilenet_v2, mobilenet_v3, efficientnet, inception, shufflenet, densenet, unet, attention,
    )
}  # fmt: skip


class Pictures(CalibrationDataReader):  # type: ignore[misc]
    """Calibration data: smooth random images."""

    def __init__(self, shape: Sequence[int], count: int = 4):
        random = np.random.default_rng(1)
        self.left = iter([{"x": random.normal(0, 1, shape).astype(np.float32)} for _ in range(count)])

    def get_next(self) -> Any:
        return next(self.left, None)


def quantized(model: Any, form: str, folder: Path, shape: Sequence[int], per_op: Any = None) -> bytes:
    """Return the model quantized by onnxruntime.quantization, in one of FORMS."""
    layout, activations, per_channel = FORMS[form]
    target = folder / f"{form}.onnx"
    quantize_static(
        model, str(target), Pictures(shape), quant_format=layout, activation_type=activations,
        weight_type=QuantType.QInt8, per_channel=per_channel, op_types_to_quantize=per_op,
    )  # fmt: skip
    return target.read_bytes()


def onnxruntime_results(model: bytes, feed: dict[str, Any], names: Sequence[str] | None = None) -> list[Any]:
    """Return the results of ONNX Runtime's CPU provider. The provider fuses int8 operators, so that
    results do not depend on the machine."""
    return list(cpu_session(model, "comparing").run(names, feed))
