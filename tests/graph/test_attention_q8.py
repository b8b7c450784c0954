"""The pass that joins the steps of 8-bit attention, in a small BERT of onnxruntime.quantization."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import vkq
import vkq.onnx
from tests.onnx.networks import onnxruntime_results
from tests.onnx.texts import Bert, quantized, text
from vkq.kernels.attention_q8 import AttentionQ8
from vkq.ops import attention_q8

LAYERS = 1


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return quantized(Bert(LAYERS).model(), tmp_path_factory.mktemp("bert"))


def kinds(session: vkq.onnx.InferenceSession, feed: dict[str, np.ndarray]) -> Counter[str]:
    return Counter(node.op for node in session.lowered({k: v.shape for k, v in feed.items()}).nodes)


def test_the_four_steps_are_one_node(
    any_device: vkq.Device, bert: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bytes of ONNX Runtime in one dispatch and in steps."""
    feed = text(2, 12, 0)
    want = onnxruntime_results(bert, feed)[0]
    session = vkq.onnx.InferenceSession(bert, any_device)
    found = kinds(session, feed)
    assert found["attention_q8"] == LAYERS
    assert not found["softmax"] + found["matmul"]
    np.testing.assert_array_equal(session.run(None, feed)[0], want)
    monkeypatch.setattr(attention_q8, "one_dispatch", AttentionQ8.of)
    feed = text(2, 16, 1)  # a new plan: sessions of a model share those that they have
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
