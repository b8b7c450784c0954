"""What ONNX Runtime is given of a model: nodes as the model has them, with names that it takes."""

import warnings
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
        ("MeanVarianceNormalization", 13, {}, {}),
        ("GroupNormalization", 21, {"num_groups": 1}, dict.fromkeys("st", np.ones(3, np.float32))),
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
        helper.make_node("LpPool", ["b"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("Softmax", ["c"], ["y"], axis=2),
    ]
    check(any_device, model(nodes, {"x": x}, more, "float32", opset), {"x": x})


def test_nodes_that_stand_for_one_have_names_of_their_own(any_device: vkq.Device) -> None:
    x = bytes_of((2, 5), "uint8")
    constants = q("x", 0.0, 100, "uint8") | q("y", 1 / 256, 0, "uint8")
    node = helper.make_node("QLinearSigmoid", ["x", "xs", "xz", "ys", "yz"], ["y"], domain=MICROSOFT)
    check(any_device, model([node], {"x": x}, constants, "uint8"), {"x": x})


@pytest.mark.parametrize("between", [False, True], ids=["int8", "float32"])
def test_a_bound_that_is_computed(any_device: vkq.Device, between: bool) -> None:
    """No table of two numbers: a bound is one for all."""
    feed = {"x": bytes_of((3, 4), "int8"), "low": np.array(-5, np.int8)}
    clip = [helper.make_node("Clip", ["x", "low"], ["y"])]
    constants: dict[str, Any] = {}
    if between:
        constants = q("q", 0.5, 100, "int8")
        clip = [
            helper.make_node("DequantizeLinear", ["x", "qs", "qz"], ["a"]),
            helper.make_node("DequantizeLinear", ["low", "qs", "qz"], ["b"]),
            helper.make_node("Clip", ["a", "b"], ["c"]),
            helper.make_node("QuantizeLinear", ["c", "qs", "qz"], ["y"]),
        ]
    data = model(clip, feed, constants, "int8")
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # of int8 numbers alone
        (got,) = session.run(None, feed)
    np.testing.assert_array_equal(got, onnxruntime_results(data, feed)[0])


def test_what_onnx_runtime_cannot_run_is_said(any_device: vkq.Device) -> None:
    feed = {"x": np.ones((2, 3), np.float32), "axis": np.array(7)}
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    data = model([node], feed, {}, "float32")
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with pytest.warns(FallbackWarning), pytest.raises(vkq.ModelError, match="ONNX Runtime cannot run"):
        session.run(None, feed)


def test_an_output_shape_beyond_what_x_reaches(any_device: vkq.Device) -> None:
    """Which asks for margins below 0."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 1, 3, 3), (1, 2, 3, 3)))
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[3, 2], output_shape=[10, 8])
    check(any_device, model([node], {"x": x}, {"w": w}, "float32"), {"x": x})


def test_choices_of_8_bits_by_flags_of_floats(any_device: vkq.Device) -> None:
    """vkq's own operator on 8-bit numbers, said in ONNX's words."""
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    nodes = [
        helper.make_node("SampleOp", ["x"], ["s"], domain=MICROSOFT),
        helper.make_node("IsInf", ["s"], ["n"]),
        helper.make_node("Where", ["n", "zero", "x"], ["w"]),
        helper.make_node("QuantizeLinear", ["w", "qs", "qz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "qs", "qz"], ["y"]),
    ]
    constants = q("q", 0.01, 128, "int8") | {"zero": np.float32(0)}
    check(any_device, model(nodes, {"x": x}, constants, "float32"), {"x": x})


@pytest.mark.parametrize("between", ["quantized", "float32"])
def test_guards_of_attention(any_device: vkq.Device, between: str) -> None:
    """As PyTorch writes it: a softmax of 8-bit numbers is never NaN."""
    x = bytes_of((2, 3, 5), "int8")
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["d"]),
        helper.make_node("Softmax", ["d"], ["s"], axis=-1),
        helper.make_node("QuantizeLinear", ["s", "ps", "pz"], ["sq"]),
        helper.make_node("DequantizeLinear", ["sq", "ps", "pz"], ["p"]),
        helper.make_node("IsNaN", ["p"], ["n"]),
        helper.make_node("Where", ["n", "zero", "p"], ["w"]),
        helper.make_node("QuantizeLinear", ["w", "ps", "pz"], ["y"]),
    ]
    if between == "float32":
        nodes[2:4] = [helper.make_node("Identity", ["s"], ["p"])]
    constants = q("x", 0.05, 128, "int8") | q("p", 1 / 256, 0, "int8") | {"zero": np.float32(0)}
    data = model(nodes, {"x": x}, constants, "int8")
    session = vkq.onnx.InferenceSession(data, any_device)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], onnxruntime_results(data, {"x": x})[0])
    (made,) = session._executables.kept.values()
    assert {node.op for node in made.graph.nodes} <= {"softmax", "Identity"}
