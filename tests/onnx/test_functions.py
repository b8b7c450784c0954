"""Tests of operators that ONNX defines by other operators: vkq runs the definition on the device, and gives
ONNX Runtime's results."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.onnx

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(node: Any, inputs: dict[str, np.ndarray], opset: int) -> Any:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, FLOAT, None) for name in node.output]
    graph = helper.make_graph([node], "g", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


LABELS = np.array([[1, 0, 4], [2, 2, 3]])
CASES = {
    "loss": (13, "SoftmaxCrossEntropyLoss", {"x": normal(0, 2, 5, 3), "t": LABELS}, {"ignore_index": 2}),
    "weighted": (
        13, "NegativeLogLikelihoodLoss", {"x": normal(1, 2, 5, 3), "t": LABELS, "w": normal(2, 5)},
        {"reduction": "sum"},
    ),
    "mean and variance": (13, "MeanVarianceNormalization", {"x": normal(3, 2, 3, 5, 7)}, {"axes": [1, 3]}),
    "crop": (18, "CenterCropPad", {"x": normal(4, 7, 3, 5), "shape": np.array([4, 9])}, {"axes": [0, 2]}),
    "shrink": (9, "Shrink", {"x": normal(5, 3, 7)}, {"lambd": 0.75, "bias": 0.25}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_definitions(device: vkq.Device, name: str) -> None:
    opset, op, inputs, attributes = CASES[name]
    data = model(helper.make_node(op, list(inputs), ["y"], **attributes), inputs, opset)
    known = ["shape"] if "shape" in inputs else []
    session = vkq.onnx.InferenceSession(data, device, constant_inputs=known)
    (got,) = session.run(None, inputs)
    (want,) = ort.InferenceSession(data.SerializeToString()).run(None, inputs)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.filterwarnings("ignore::vkq.onnx.constant.ConstantInputWarning")
def test_a_definition_whose_shape_is_open(any_device: vkq.Device) -> None:
    """An operator whose definition has a shape that depends on an input's value (HannWindow) is within 3e-7
    of ONNX Runtime's result."""
    node = helper.make_node("HannWindow", ["n"], ["y"])
    for size in (5, 8):
        inputs = {"n": np.array(size, np.int32)}
        data = model(node, inputs, 17)
        (got,) = vkq.onnx.InferenceSession(data, any_device).run(None, inputs)
        (want,) = ort.InferenceSession(data.SerializeToString()).run(None, inputs)
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-7)
