"""Models of graph operators that networks rarely contain, for tests that inject faults."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 8, 8, 8)
MICROSOFT = "com.microsoft"


class Nodes:
    """A model under construction."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.results: list[tuple[str, int]] = []
        self.scale, self.zero = self.constant(np.float32(0.05)), self.constant(np.int8(3))

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def whole(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], domain=domain, **attributes))
        return name

    def rounded(self, real: str) -> str:
        """Add a QuantizeLinear and a DequantizeLinear of *real*; return the name of the result."""
        quantized = self.op("QuantizeLinear", real, self.scale, self.zero)
        return self.op("DequantizeLinear", quantized, self.scale, self.zero)

    def out(self, name: str, kind: int = TensorProto.FLOAT) -> None:
        self.results.append((name, kind))

    def model(self) -> bytes:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
        outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in self.results]
        graph = helper.make_graph(self.nodes, "seldom", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def model() -> bytes:
    n = Nodes()
    real = n.rounded("x")
    other = n.rounded(n.op("MaxPool", real, kernel_shape=[3, 3], pads=[1] * 4))
    scores = n.rounded(n.op("MatMul", real, n.op("Transpose", other, perm=[0, 1, 3, 2])))
    for name in (
        n.op("MatMul", n.rounded(n.op("Softmax", scores)), real),
        n.op("DepthToSpace", n.rounded(n.op("SpaceToDepth", real, blocksize=2)), blocksize=2),
        n.op("Tile", real, n.whole(1, 1, 2, 1)),
        n.op("Pad", real, n.whole(0, 0, 1, 1, 0, 0, 1, 0)),
        n.op("Gather", real, n.whole(2, 0, 3), axis=1),
        n.op("Expand", n.op("Slice", real, n.whole(0), n.whole(1), n.whole(1)), n.whole(*SHAPE)),
        n.op("Add", real, other),
        n.op("Sub", real, other),
        n.op("Mul", real, other),
        n.op("Max", real, other),
        n.op("AveragePool", real, kernel_shape=[3, 3]),
        n.op("Sigmoid", n.rounded(n.op("ReduceMean", real, axes=[2, 3]))),
        n.op("ConvTranspose", real, n.rounded(n.constant(np.ones((8, 4, 2, 2), np.float32)))),
        n.op("Softmax", real),
        n.op("Reshape", n.op("Transpose", real, perm=[0, 2, 1, 3]), n.whole(1, 64, 8)),
    ):
        n.out(n.rounded(name))
    _whole_numbers(n)
    return n.model()


def _whole_numbers(n: Nodes) -> None:
    """Add a QuantizeLinear along an axis, and ConvInteger and MatMulInteger with constant zero points."""
    each = [n.constant(np.linspace(0.02, 0.3, 8, dtype=np.float32)), n.constant(np.arange(8, dtype=np.int8))]
    n.out(n.op("DequantizeLinear", n.op("QuantizeLinear", "x", *each, axis=1), *each, axis=1))
    x, zero = n.op("QuantizeLinear", "x", n.scale, n.constant(np.uint8(100))), n.constant(np.uint8(7))
    weights = np.random.default_rng(3).integers(0, 256, (4, 8, 3, 3), np.uint8)
    n.out(n.op("ConvInteger", x, n.constant(weights), zero, zero), TensorProto.INT32)
    product = n.op("MatMulInteger", x, n.constant(weights[0, :, 0]), zero, zero)
    n.out(n.op("Cast", product, to=TensorProto.FLOAT))
    n.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["bytes", "scale", "middle"]))
    n.out("bytes", TensorProto.UINT8)


def real() -> bytes:
    """Return a model of float32 operators, selections, and products with weights of 4 or 8 bits in
    groups."""
    n = Nodes()
    for kind in ("Relu", "Neg", "Abs", "Sqrt", "Reciprocal", "HardSigmoid", "HardSwish", "LeakyRelu"):
        n.out(n.op(kind, "x"))
    n.out(n.op("Identity", "x"))
    n.out(n.op("MatMul", "x", n.op("Relu", "x")))  # a product of two activations
    n.out(n.op("GlobalAveragePool", "x"))
    n.out(n.op("AveragePool", "x", kernel_shape=[2, 2]))
    n.out(n.op("Clip", "x", n.constant(np.float32(-1)), n.constant(np.float32(1))))
    n.out(n.op("Pow", "x", n.constant(np.float32(2))))
    n.out(n.op("ReduceSum", "x", n.whole(1)))
    each = np.linspace(0.5, 1.5, 8, dtype=np.float32)
    n.out(n.op("BatchNormalization", "x", *(n.constant(each) for _ in range(4))))
    other = n.op("MaxPool", "x", kernel_shape=[3, 3], pads=[1] * 4)
    for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        n.out(n.op(kind, "x", other))
    n.out(n.op("Sum", "x", other, "x"))
    _choices(n, n.rounded("x"), n.rounded(other))
    _in_order(n)
    packed = np.random.default_rng(4).integers(0, 256, (8, 1, 16), np.uint8)
    weight = (n.constant(packed), n.constant(np.full(8, 0.1, np.float32)))
    rows = n.op("Reshape", "x", n.whole(16, 32))
    n.out(n.op("MatMulNBits", rows, *weight, domain=MICROSOFT, K=32, N=8, bits=4, block_size=32))
    return n.model()


def _choices(n: Nodes, x: str, other: str) -> None:
    for kind in ("ArgMax", "ArgMin"):
        n.out(n.op(kind, x, axis=1), TensorProto.INT64)
    n.out(n.op("Where", n.op("Greater", x, n.constant(np.float32(0))), x, other))
    flags = n.op("Greater", x, other)
    quantized = [n.op("QuantizeLinear", value, n.scale, n.zero) for value in (x, other)]
    pairs = [name for value in quantized for name in (value, n.scale, n.zero)]
    y = n.op("QLinearWhere", flags, *pairs, n.scale, n.zero, domain=MICROSOFT)
    n.out(n.op("DequantizeLinear", y, n.scale, n.zero))
    moved = n.op("Relu", n.op("Add", x, n.constant(np.arange(8, dtype=np.float32).reshape(8, 1, 1))))
    n.out(n.rounded(n.op("GlobalAveragePool", moved)))


def _in_order(n: Nodes) -> None:
    """Add operators along an axis (CumSum, linear Resize, TopK), ScatterElements and integer reductions."""
    n.out(n.op("CumSum", "x", n.constant(np.array(2))))
    n.out(n.op("Resize", "x", "", n.constant(np.float32([1, 1, 1.5, 2])), mode="linear"))
    n.out(n.op("TopK", "x", n.whole(3), axis=2))
    flags = n.op("Greater", "x", n.constant(np.float32(0)))
    ids = n.op("Cast", flags, to=TensorProto.INT32)
    n.out(n.op("ScatterElements", "x", ids, "x", axis=3, reduction="add"))
    for kind in ("ReduceMax", "ReduceMin", "ReduceProd"):
        n.out(n.op(kind, ids, axes=[1]), TensorProto.INT32)
