"""Tests of operators whose inputs are constants."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import vkq
import vkq.onnx
from vkq.graph.graph import Node
from vkq.graph.operators.table import compute
from vkq.graph.passes import constants
from vkq.onnx.reader import read

from .test_chains import FLOAT, model, normal, op


def test_a_quantized_convolution(any_device: vkq.Device) -> None:
    """A convolution between quantized values keeps ONNX Runtime's bytes if its image is a constant."""
    nodes = [
        op("QuantizeLinear", "c s z", "q"), op("DequantizeLinear", "q s z", "d"),
        op("DequantizeLinear", "w s z", "v"), op("Conv", "d v", "e"), op("QuantizeLinear", "e t z", "p"),
        op("DequantizeLinear", "p t z", "f"), op("Add", "f x", "y"),
    ]  # fmt: skip
    weight = np.random.default_rng(1).integers(-9, 10, (3, 4, 3, 2)).astype(np.int8)
    numbers = {"s": np.float32(0.25), "t": np.float32(0.5), "z": np.int8(0), "w": weight}
    inputs = {"x": np.zeros(1, np.float32)}  # scales are powers of 2, so many sums are ties
    data = model(nodes, inputs, {"y": FLOAT}, c=normal(0, 2, 4, 6, 5), **numbers)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    want = ort.InferenceSession(data.SerializeToString(), options).run(None, inputs)
    np.testing.assert_array_equal(vkq.onnx.InferenceSession(data, any_device).run(None, inputs), want)


@pytest.mark.parametrize("known", [False, True], ids=["run", "constant"])
def test_normalizations_of_a_batch(any_device: vkq.Device, known: bool) -> None:
    """A BatchNormalization in training mode uses the mean and variance of its input: PyTorch exports the
    standardized weights of NFNets in this form."""
    node = op("BatchNormalization", "x s b m v", "n", training_mode=1, epsilon=0.1)
    node.output.extend(["mean", "variance"])
    image, zero = normal(3, 3, 4, 5, 2), np.zeros(1, np.float32)
    inputs, numbers = {"o": zero} if known else {"o": zero, "x": image}, {"x": image} if known else {}
    numbers |= {name: normal(i, 4) for i, name in enumerate("sbm")} | {"v": normal(4, 4) ** 2}
    data = model([node, op("Add", "n o", "y")], inputs, {"y": FLOAT}, **numbers)
    (got,) = vkq.onnx.InferenceSession(data, any_device).run(None, inputs)
    (want,) = ort.InferenceSession(data.SerializeToString()).run(None, inputs)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_what_no_result_needs_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """BatchNormalization in training mode computes the mean and the variance of its input. The nodes of the
    model that would compute its inputs for both are not executed."""
    computed: list[str] = []

    def spied(node: Node, arrays: Any) -> Any:
        computed.append(node.op)
        return compute(node, arrays)

    monkeypatch.setattr(constants, "compute", spied)
    norm = op("BatchNormalization", "x s s m m", "y", training_mode=1)
    norm.output.extend(["mean", "variance"])
    nodes = [op("ReduceMean", "x axes", "m", keepdims=0), norm]
    numbers = {"x": normal(0, 2, 3, 4), "s": normal(1, 3), "axes": np.array([0, 2])}
    graph, _ = read(model(nodes, {}, {"y": FLOAT}, **numbers)).known({})
    assert not graph.nodes
    assert computed == ["BatchNormalization"]
