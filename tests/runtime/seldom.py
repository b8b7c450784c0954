"""A model of the graph operators that networks seldom have, for faults under each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 8, 8, 8)


class Nodes:
    """Nodes and constants in the making."""

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

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def rounded(self, real: str) -> str:
        """Quantized and back."""
        quantized = self.op("QuantizeLinear", real, self.scale, self.zero)
        return self.op("DequantizeLinear", quantized, self.scale, self.zero)

    def out(self, name: str, kind: int = TensorProto.FLOAT) -> None:
        self.results.append((name, kind))

    def model(self) -> bytes:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
        outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in self.results]
        graph = helper.make_graph(self.nodes, "seldom", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 17)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def model() -> bytes:
    n = Nodes()
    real = n.rounded("x")
    other = n.rounded(n.op("MaxPool", real, kernel_shape=[3, 3], pads=[1] * 4))
    for name in (
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
    ):
        n.out(n.rounded(name))
    _whole_numbers(n)
    return n.model()


def _whole_numbers(n: Nodes) -> None:
    """QuantizeLinear along an axis, and products of zero points that are constants."""
    each = [n.constant(np.linspace(0.02, 0.3, 8, dtype=np.float32)), n.constant(np.arange(8, dtype=np.int8))]
    n.out(n.op("DequantizeLinear", n.op("QuantizeLinear", "x", *each, axis=1), *each, axis=1))
    x, zero = n.op("QuantizeLinear", "x", n.scale, n.constant(np.uint8(100))), n.constant(np.uint8(7))
    weights = np.random.default_rng(3).integers(0, 256, (4, 8, 3, 3), np.uint8)
    n.out(n.op("ConvInteger", x, n.constant(weights), zero, zero), TensorProto.INT32)
    n.out(n.op("MatMulInteger", x, n.constant(weights[0, :, 0]), zero, zero), TensorProto.INT32)
    n.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["bytes", "scale", "middle"]))
    n.out("bytes", TensorProto.UINT8)
