"""What ONNX Runtime is given of a model: nodes as the model has them, with names that it takes."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkq
import vkq.onnx
from vkq.onnx.fallback import FallbackWarning

from .networks import onnxruntime_results
from .test_operators import MICROSOFT, bytes_of, model, q


def check(device: vkq.Device, data: bytes, feed: dict[str, np.ndarray]) -> None:
    session = vkq.onnx.InferenceSession(data, device, fallback="onnxruntime")
    with pytest.warns(FallbackWarning):
        (got,) = session.run(None, feed)
    (want,) = onnxruntime_results(data, feed)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-3 if want.dtype == np.float16 else 1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "opset", "attributes", "more"),
    [
        ("LogSoftmax", 11, {"axis": 1}, {}),  # the axes from there on are one
        ("Hardmax", 11, {"axis": 1}, {}),
        ("ReduceLogSumExp", 13, {"axes": [1]}, {}),  # an input since
        ("RMSNormalization", 23, {"axis": -1}, {"s": np.linspace(1, 2, 5, dtype=np.float32)}),
        ("Swish", 24, {}, {}),
        ("Sinh", 22, {}, {}),
    ],
    ids=lambda value: value if isinstance(value, (str, int)) else "",
)
def test_operators_are_as_the_opset_of_the_model_has_them(
    any_device: vkq.Device, op: str, opset: int, attributes: dict[str, Any], more: dict[str, np.ndarray]
) -> None:
    """Between others, which are handed over in their newest form."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    nodes = [
        helper.make_node("Erf", ["x"], ["a"]),
        helper.make_node(op, ["a", *more], ["b"], **attributes),
        helper.make_node("LRN", ["b"], ["c"], size=3),
        helper.make_node("Softmax", ["c"], ["y"], axis=2),
    ]
    check(any_device, model(nodes, {"x": x}, more, "float32", opset), {"x": x})


def test_nodes_that_stand_for_one_have_names_of_their_own(any_device: vkq.Device) -> None:
    x = bytes_of((2, 5), "uint8")
    constants = q("x", 0.0, 100, "uint8") | q("y", 1 / 256, 0, "uint8")
    node = helper.make_node("QLinearSigmoid", ["x", "xs", "xz", "ys", "yz"], ["y"], domain=MICROSOFT)
    check(any_device, model([node], {"x": x}, constants, "uint8"), {"x": x})
