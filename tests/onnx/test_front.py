"""Tests of the first operators of a quantized text encoder, as PyTorch and quantize_static write them. They
give ONNX Runtime's bytes in few dispatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from tests.onnx.networks import onnxruntime_results

TOKENS, WIDTH, WORDS, HEADS = 12, 32, 30, 2
INT64, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL


class Written:
    """Nodes and constants of a model with uint8 values."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, kind: str, *inputs: str, y: str = "", **attributes: Any) -> str:
        name = y or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [*inputs], [name], **attributes))
        return name

    def real(self, x: str, scale: float = 0.05, zero: int = 121, y: str = "") -> str:
        parameters = self.constant(np.float32(scale)), self.constant(np.uint8(zero))
        return self.op("DequantizeLinear", x, *parameters, y=y)

    def held(self, x: str, scale: float = 0.05, zero: int = 121, y: str = "") -> str:
        parameters = self.constant(np.float32(scale)), self.constant(np.uint8(zero))
        return self.real(self.op("QuantizeLinear", x, *parameters), scale, zero, y)

    def model(self, inputs: dict[str, Any], outputs: dict[str, int]) -> bytes:
        infos = [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()]
        results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
        graph = helper.make_graph(self.nodes, "front", infos, results, self.constants)
        opsets = [helper.make_opsetid("", 17)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def mask_of(w: Written, batch: int) -> str:
    """Return a mask (batch, 1, tokens, tokens) of 0 and -10 from the tokens to be seen, (batch, tokens)."""
    places = np.arange(batch * TOKENS).reshape(batch, 1, 1, TOKENS)
    flags = w.op("Flatten", w.op("Cast", "mask", to=BOOL), axis=2)
    seen = w.op("Reshape", flags, w.constant([-1, 1]))
    seen = w.op("Gather", seen, w.constant(places), axis=0)
    seen = w.op("Reshape", seen, w.constant([batch, 1, 1, TOKENS]))
    seen = w.op("And", w.constant(np.ones((1, 1, TOKENS, 1), bool)), seen)
    seen = w.op("Expand", seen, w.constant([batch, 1, TOKENS, TOKENS]))
    hidden = w.op("Where", seen, w.constant(np.float32(0)), w.constant(np.float32(-10)))
    return w.held(hidden, 0.0392, 255)


def masked_scores(batch: int) -> bytes:
    w = Written()
    w.held(w.op("Add", w.held("x"), mask_of(w, batch)), 0.07, 200, "y")
    shapes = {"mask": (INT64, (batch, TOKENS)), "x": (FLOAT, (batch, HEADS, TOKENS, TOKENS))}
    return w.model(shapes, {"y": FLOAT})


def masked_attention(batch: int) -> bytes:
    """Return a model of self-attention to x (batch, heads, tokens, 16)."""
    w = Written()
    x = w.held("x")
    scores = w.held(w.op("MatMul", x, w.op("Transpose", x, perm=[0, 1, 3, 2])), 0.4, 100)
    weights = w.op("Softmax", w.held(w.op("Add", scores, mask_of(w, batch)), 0.4, 110), axis=-1)
    w.held(w.op("MatMul", w.held(weights, 1 / 255, 0), x), y="y")
    shapes = {"mask": (INT64, (batch, TOKENS)), "x": (FLOAT, (batch, HEADS, TOKENS, 16))}
    return w.model(shapes, {"y": FLOAT})


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("data", "last", "steps"),
    [
        (masked_scores, TOKENS, {"add": 1, "chain": 2, "dequantize": 1, "quantize": 1}),
        (masked_attention, 16, {"attention_q8": 5, "chain": 1, "dequantize": 1, "quantize": 1}),
    ],
)
def test_a_mask_is_one_chain(
    device: vkq.Device, data: Callable[[int], bytes], last: int, steps: dict[str, int], batch: int
) -> None:
    """The mask is computed for (batch, 1, 1, tokens), in the layout that attention reads; the sum with the
    scores broadcasts it."""
    random = np.random.default_rng(batch)
    x = random.normal(0, 3, (batch, HEADS, TOKENS, last)).astype(np.float32)
    feed = {"mask": random.integers(0, 2, (batch, TOKENS)), "x": x}
    session = vkq.onnx.InferenceSession(data(batch), device)
    assert {row.operator: len(row.shaders) for row in session.explain().rows if row.shaders} == steps
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data(batch), feed)[0])


@pytest.mark.parametrize(("shape", "ops"), [((4, 1), {"Expand"}), ((1, 8), set())])
def test_sums_keep_the_order_of_operands(
    any_device: vkq.Device, shape: tuple[int, int], ops: set[str]
) -> None:
    """An Expand along the last axis stays before a sum: without it, the sum would swap its operands, and
    round otherwise."""
    w, random = Written(), np.random.default_rng(4)
    wide = w.op("Expand", w.held("x", 0.031), w.constant([4, 8]))
    w.held(w.op("Add", wide, w.held("z", 0.047)), 0.053, 3, "y")
    data = w.model({"x": (FLOAT, shape), "z": (FLOAT, (4, 8))}, {"y": FLOAT})
    session = vkq.onnx.InferenceSession(data, any_device)
    assert {row.operator for row in session.explain().rows} & {"Expand"} == ops
    feed = {"x": random.normal(0, 2, shape), "z": random.normal(0, 2, (4, 8))}
    feed = {name: array.astype(np.float32) for name, array in feed.items()}
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data, feed)[0])
