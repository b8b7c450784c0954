"""Tests of initializers that are also inputs: `run` may replace their values, as in ONNX Runtime."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import vkq
import vkq.onnx
from vkq.onnx.fallback import FallbackWarning

RNG = np.random.default_rng(36)
WEIGHT = RNG.integers(-9, 10, (5, 3, 3, 2)).astype(np.int8)
BIAS = RNG.integers(-99, 99, 5).astype(np.int32)
X = RNG.integers(0, 256, (2, 3, 6, 5)).astype(np.uint8)


def model(more: str = "Identity") -> bytes:
    """Return a model of a convolution, whose weight and bias are also inputs, and the operator *more*."""
    constants: dict[str, Any] = {
        "s": np.float32(0.02), "xz": np.uint8(7), "w": WEIGHT, "ws": np.float32(0.05), "wz": np.int8(0),
        "ys": np.float32(0.1), "yz": np.uint8(9), "b": BIAS,
    }  # fmt: skip
    nodes = [
        helper.make_node("QLinearConv", ["x", "s", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["c"]),
        helper.make_node(more, ["c"], ["y"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype
    inputs = [("x", X), ("w", WEIGHT), ("b", BIAS)]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in inputs],
        [helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    data: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return data


FEEDS = [{}, {"w": WEIGHT[::-1].copy()}, {"w": -WEIGHT, "b": BIAS + 500}, {"b": BIAS - 77}, {}]


@pytest.mark.parametrize("again", ["as it is", "pickled"])
def test_onnxruntimes_bytes(any_device: vkq.Device, again: str) -> None:
    session = vkq.onnx.InferenceSession(model(), any_device)
    if again == "pickled":
        session = pickle.loads(pickle.dumps(session))
    other = ort.InferenceSession(model(), providers=["CPUExecutionProvider"])
    names = [[a.name for a in one.get_overridable_initializers()] for one in (session, other)]
    assert names[0] == ["w", "b"]
    assert set(names[1]) == {"w", "b"}
    assert [a.name for a in session.get_inputs()] == ["x"]
    for feed in FEEDS:
        (want,) = other.run(None, {"x": X, **feed})
        np.testing.assert_array_equal(session.run(["y"], {"x": X, **feed})[0], want)


def test_beside_the_fallback(any_device: vkq.Device) -> None:
    proto = onnx.load_from_string(model("BitwiseNot"))
    proto.opset_import[0].version = 18
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        session = vkq.onnx.InferenceSession(proto, any_device, fallback="onnxruntime")
        alone = vkq.onnx.InferenceSession(model(), any_device)
        for feed in FEEDS:
            got, want = (one.run(None, {"x": X, **feed})[0] for one in (session, alone))
            np.testing.assert_array_equal(got, ~want)


def test_refused(any_device: vkq.Device) -> None:
    session = vkq.onnx.InferenceSession(model(), any_device)
    for feed, error, words in (
        ({"w": WEIGHT.astype(np.uint8)}, vkq.DTypeError, "input 'w' is uint8; it must be int8"),
        ({"b": BIAS[:4]}, vkq.ArgumentError, r"input 'b' has shape \(4,\)"),
        ({"s": np.float32(1)}, vkq.ArgumentError, "the model takes"),
    ):
        with pytest.raises(error, match=words):
            session.run(None, {"x": X, **feed})
