"""Tests of the pass that fuses the steps of 8-bit attention, on a small BERT that onnxruntime.quantization
quantized."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import onnx
import pytest

import vkq
import vkq.onnx
from tests.onnx.networks import onnxruntime_results
from tests.onnx.texts import Bert, quantized, text
from vkq.graph.graph import Graph, Node, Spec
from vkq.graph.passes.attention_q8 import join_attention
from vkq.numerics.qparams import QParams

LAYERS = 1


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return quantized(Bert(LAYERS).model(), tmp_path_factory.mktemp("bert"))


def kinds(session: vkq.onnx.InferenceSession, feed: dict[str, np.ndarray]) -> Counter[str]:
    return Counter(node.op for node in session.lowered({k: v.shape for k, v in feed.items()}).nodes)


def test_the_four_steps_are_one_node(
    any_device: vkq.Device, bert: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused attention gives ONNX Runtime's bytes, both as separate dispatches and as one dispatch."""
    feed = text(2, 12, 0)
    want = onnxruntime_results(bert, feed)[0]
    session = vkq.onnx.InferenceSession(bert, any_device)
    found = kinds(session, feed)
    assert found["attention_q8"] == LAYERS
    assert not found["softmax"] + found["matmul"]
    np.testing.assert_array_equal(session.run(None, feed)[0], want)
    changed = dataclasses.replace(any_device.capabilities, choices=(("attention_in_steps", False),))
    monkeypatch.setattr(any_device, "capabilities", changed)
    feed = text(2, 16, 1)  # another length, because sessions of a model share plans
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(bert, feed)[0])
    report = session.explain({name: ids.shape for name, ids in feed.items()})
    assert [row.why for row in report.rows if row.operator == "attention_q8"] == [
        f"one dispatch: {2 * 3 * 16 * 16} scores stay in shared memory"
    ]


def test_weights_that_are_read_stay(any_device: vkq.Device, bert: bytes) -> None:
    model = onnx.load_model_from_string(bert)
    softmax = next(node.output[0] for node in model.graph.node if node.op_type == "Softmax")
    weights = next(node.output[0] for node in model.graph.node if node.input[0] == softmax)
    model.graph.output.append(onnx.helper.make_tensor_value_info(weights, onnx.TensorProto.INT8, None))
    session = vkq.onnx.InferenceSession(model.SerializeToString(), any_device)
    feed = text(1, 8, 0)
    found = kinds(session, feed)
    assert found["softmax"] == LAYERS
    assert not found["attention_q8"]


@pytest.mark.parametrize(("dtype", "joined"), [("int8", True), ("uint8", False)])
def test_steps_of_two_types_stay(dtype: str, joined: bool) -> None:
    """Attention steps are fused only if the softmax's result has the type of q."""
    q, weights = QParams(0.1, 3, "int8"), QParams(1 / 256, -128 if dtype == "int8" else 0, dtype)
    rows = {"rows": True, "heads": (1, 1, 1)}
    nodes = [
        Node("Transpose", ("v",), ("columns",), {"perm": (0, 1, 3, 2)}),
        Node("matmul", ("q", "k"), ("scores",), {"a": q, "b": q, "y": q, **rows}),
        Node("softmax", ("scores",), ("w",), {"x": q, "y": weights, "axis": 3, "onnxruntime": True}),
        Node("matmul", ("w", "columns"), ("y",), {"a": weights, "b": q, "y": q, **rows}),
    ]
    shapes = dict.fromkeys(("q", "k", "v", "y"), (1, 2, 4, 8))
    shapes |= {"columns": (1, 2, 8, 4), "scores": (1, 2, 4, 4), "w": (1, 2, 4, 4)}
    specs = {name: Spec(dtype if name == "w" else "int8", shape) for name, shape in shapes.items()}
    found = join_attention(Graph(["q", "k", "v"], ["y"], nodes, {}, specs))
    assert ([node.op for node in found.nodes] == ["attention_q8"]) == joined
    assert joined or found.nodes == nodes
