"""Transformers with random weights, as torch's exporter writes them (a node for every step). They are the
input of ONNX Runtime's transformer optimizer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, WIDTH = 2, 16
INFO = helper.make_tensor_value_info


class Net:
    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def weight(self, *shape: int, size: float = 0.0, middle: float = 0.0) -> str:
        size = size or 1 / np.sqrt(shape[0])
        return self.constant(self.random.normal(middle, size, shape).astype(np.float32))

    def op(self, op: str, *inputs: str, count: int = 1, output: str = "", **a: Any) -> Any:
        first = len(self.nodes)
        names = [output] if output else [f"{op}_{first}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"{op}_{first}", **a))
        return names[0] if count == 1 else names

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.constant(np.array(shape)))

    def norm(self, x: str) -> str:
        scale, bias = self.weight(WIDTH, size=0.2, middle=1), self.weight(WIDTH, size=0.2)
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def dense(self, x: str, k: int, n: int) -> str:
        return self.op("Add", self.weight(n, size=0.1), self.op("MatMul", x, self.weight(k, n)))

    def gelu(self, x: str) -> str:
        erf = self.op("Erf", self.op("Div", x, self.number(np.sqrt(2))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.number(1))), self.number(0.5))

    def attention(self, x: str, mask: str = "") -> str:
        q, k, v = (self.reshape(self.dense(x, WIDTH, WIDTH), 0, 0, HEADS, WIDTH // HEADS) for _ in range(3))
        q, v = (self.op("Transpose", one, perm=[0, 2, 1, 3]) for one in (q, v))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 2, 3, 1]))
        scores = self.op("Div", scores, self.number(np.sqrt(WIDTH // HEADS)))
        scores = self.op("Add", scores, mask) if mask else scores
        y = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        y = self.reshape(self.op("Transpose", y, perm=[0, 2, 1, 3]), 0, 0, WIDTH)
        return self.dense(y, WIDTH, WIDTH)

    def wide(self, x: str) -> str:
        return self.dense(self.gelu(self.dense(x, WIDTH, 2 * WIDTH)), 2 * WIDTH, WIDTH)

    def model(self, inputs: list[Any], outputs: list[Any]) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "main_graph", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def bert() -> onnx.ModelProto:
    """Return a model of two layers with normalization after attention and MLP, and with a padding mask."""
    net = Net()
    mask = net.op("Unsqueeze", net.op("Unsqueeze", "attention_mask", net.constant([1])), net.constant([2]))
    mask = net.op("Sub", net.number(1), net.op("Cast", mask, to=TensorProto.FLOAT))
    mask = net.op("Mul", mask, net.number(-10000))
    words, kinds = (net.op("Gather", net.weight(n, WIDTH, size=1), ids, axis=0)
                    for n, ids in ((100, "input_ids"), (2, "token_type_ids")))  # fmt: skip
    places = net.op("Gather", net.weight(16, WIDTH, size=1), net.constant(np.arange(9)[None]), axis=0)
    x = net.norm(net.op("Add", net.op("Add", words, kinds), places))
    for _ in range(2):
        x = net.norm(net.op("Add", net.attention(x, mask), x))
        x = net.norm(net.op("Add", net.wide(x), x))
    net.op("Identity", x, output="y")
    names = "input_ids", "token_type_ids", "attention_mask"
    return net.model(
        [INFO(n, TensorProto.INT64, ["batch", 9]) for n in names],
        [INFO("y", TensorProto.FLOAT, ["batch", 9, WIDTH])],
    )


def vit() -> onnx.ModelProto:
    """Return a model of two layers with normalization before attention and MLP, for nine patches and a
    class token."""
    net = Net()
    kernel, bias = net.weight(WIDTH, 3, 4, 4, size=0.1), net.weight(WIDTH, size=0.1)
    x = net.op("Conv", "pixel_values", kernel, bias, kernel_shape=[4, 4], strides=[4, 4])
    x = net.op("Transpose", net.reshape(x, 0, WIDTH, 9), perm=[0, 2, 1])
    x = net.op("Add", net.op("Concat", net.weight(1, 1, WIDTH), x, axis=1), net.weight(1, 10, WIDTH))
    for _ in range(2):
        x = net.op("Add", net.attention(net.norm(x)), x)
        x = net.op("Add", net.wide(net.norm(x)), x)
    x = net.op("Gather", net.norm(x), net.constant(np.array(0)), axis=1)
    net.op("Gemm", x, net.weight(WIDTH, 10), net.weight(10), output="y")
    return net.model(
        [INFO("pixel_values", TensorProto.FLOAT, [1, 3, 12, 12])], [INFO("y", TensorProto.FLOAT, [1, 10])]
    )


class Gpt2(Net):
    """A GPT-2. Each layer has one input and one result for its keys and values together."""

    def gemm(self, x: str, k: int, n: int) -> str:
        """Add the product of x's rows and a weight, written like transformers' Conv1D; return the name of
        the result."""
        lead = self.op("Slice", self.op("Shape", x), self.constant([0]), self.constant([2]))
        y = self.op("Gemm", self.reshape(x, -1, k), self.weight(k, n), self.weight(n, size=0.1))
        return self.op("Reshape", y, self.op("Concat", lead, self.constant([n]), axis=0))

    def new_gelu(self, x: str) -> str:
        cube = self.op("Mul", self.op("Pow", x, self.number(3)), self.number(0.044715))
        inner = self.op("Mul", self.op("Add", x, cube), self.number(np.sqrt(2 / np.pi)))
        tanh = self.op("Add", self.op("Tanh", inner), self.number(1))
        return self.op("Mul", self.op("Mul", x, self.number(0.5)), tanh)

    def size(self, x: str, axis: int) -> str:
        ends = (self.constant([n]) for n in (axis, axis + 1, 0))
        return self.op("Squeeze", self.op("Slice", self.op("Shape", x), *ends), self.constant([0]))

    def causal(self, scores: str) -> str:
        """Add the slice of a table of flags that is the causal mask for these queries and keys; return its
        name."""
        keys, queries = (self.size(scores, axis) for axis in (3, 2))
        zero = self.constant([0])
        first = self.op("Unsqueeze", self.op("Sub", keys, queries), zero)
        end, one = self.op("Unsqueeze", keys, zero), self.constant([1])
        table = self.constant(np.tril(np.ones((1, 1, 16, 16), np.uint8)))
        rows = self.op("Slice", table, first, end, self.constant([2]), one)
        rows = self.op("Slice", rows, zero, end, self.constant([3]), one)
        return self.op("Cast", rows, to=TensorProto.BOOL)

    def attention_with_past(self, x: str, layer: int, mask: str) -> str:
        parts = self.op("Split", self.gemm(x, WIDTH, 3 * WIDTH), self.constant([WIDTH] * 3), count=3, axis=2)
        q, k, v = (self.reshape(part, 0, 0, HEADS, WIDTH // HEADS) for part in parts)
        q, v = (self.op("Transpose", one, perm=[0, 2, 1, 3]) for one in (q, v))
        old_k, old_v = (
            self.op("Gather", f"past_{layer}", self.constant(np.array(i)), axis=0) for i in (0, 1)
        )
        old_k = self.op("Transpose", old_k, perm=[0, 1, 3, 2])
        k = self.op("Concat", old_k, self.op("Transpose", k, perm=[0, 2, 3, 1]), axis=-1)
        v = self.op("Concat", old_v, v, axis=-2)
        zero = self.constant([0])
        new = [self.op("Unsqueeze", one, zero) for one in (self.op("Transpose", k, perm=[0, 1, 3, 2]), v)]
        self.op("Concat", *new, output=f"present_{layer}", axis=0)
        scores = self.op("Div", self.op("MatMul", q, k), self.number(np.sqrt(WIDTH // HEADS)))
        scores = self.op("Where", self.causal(scores), scores, self.number(-10000))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        y = self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        return self.gemm(self.reshape(y, 0, 0, WIDTH), WIDTH, WIDTH)


def gpt2() -> onnx.ModelProto:
    """Return a model of two layers with caches and a padding mask."""
    net = Gpt2()
    mask = net.op("Unsqueeze", net.op("Unsqueeze", "attention_mask", net.constant([1])), net.constant([2]))
    mask = net.op("Mul", net.op("Sub", net.number(1), mask), net.number(-10000))
    words = net.op("Gather", net.weight(100, WIDTH, size=1), "input_ids", axis=0)
    x = net.op("Add", words, net.op("Gather", net.weight(16, WIDTH, size=1), "position_ids", axis=0))
    for layer in range(2):
        x = net.op("Add", x, net.attention_with_past(net.norm(x), layer, mask))
        y = net.new_gelu(net.gemm(net.norm(x), WIDTH, 2 * WIDTH))
        x = net.op("Add", x, net.gemm(y, 2 * WIDTH, WIDTH))
    net.op("MatMul", net.norm(x), net.weight(WIDTH, 100), output="logits")
    past, present = ([2, "batch", HEADS, n, WIDTH // HEADS] for n in ("past", "total"))
    ids = [INFO(n, TensorProto.INT64, ["batch", "tokens"]) for n in ("input_ids", "position_ids")]
    return net.model(
        [*ids, INFO("attention_mask", TensorProto.FLOAT, ["batch", "total"]),
         *(INFO(f"past_{i}", TensorProto.FLOAT, past) for i in range(2))],
        [INFO("logits", TensorProto.FLOAT, ["batch", "tokens", 100]),
         *(INFO(f"present_{i}", TensorProto.FLOAT, present) for i in range(2))],
    )  # fmt: skip


def main() -> None:
    """Optimize each model with ONNX Runtime's transformer optimizer, and write the results to
    tests/onnx/optimized: python -m tests.onnx.written_out (needs sympy)."""
    from onnxruntime.transformers.optimizer import optimize_model

    for make in (bert, vit, gpt2):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.onnx")
            onnx.save(make(), path)
            made = optimize_model(path, make.__name__, num_heads=HEADS, hidden_size=WIDTH, opt_level=0)
        onnx.save(made.model, str(Path(__file__).parent / "optimized" / f"{make.__name__}.onnx"))


if __name__ == "__main__":
    main()
