"""Tests of the parts of a model that ONNX Runtime runs as the fallback: their nodes have the form of the
model's opset, and valid names."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkq
import vkq.onnx
from vkq.graph.device.rows import ROWS
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
        ("LogSoftmax", 11, {"axis": 1}, {}),  # before opset 13: the axes from *axis* on count as one
        ("Hardmax", 11, {"axis": 1}, {}),
        ("ReduceLogSumExp", 13, {"axes": [1]}, {}),  # before opset 18: *axes* is an attribute
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
    """Operators go to the fallback in the form of the model's opset, although vkq writes other nodes in
    the form of the newest opset."""
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
    """A Clip with a computed bound gives ONNX Runtime's results. vkq must not replace this Clip by a
    lookup table of two operands, because a bound is one value for all elements."""
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
        warnings.simplefilter("ignore", FallbackWarning)  # the fallback warns
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
    """ConvTranspose with an output_shape that x cannot fill needs negative padding, and runs in the
    fallback."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 1, 3, 3), (1, 2, 3, 3)))
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[3, 2], output_shape=[10, 8])
    check(any_device, model([node], {"x": x}, {"w": w}, "float32"), {"x": x})


def test_choices_of_8_bits_by_flags_of_floats(any_device: vkq.Device) -> None:
    """vkq fuses Where and QuantizeLinear into a Where on 8-bit values. If the fallback runs this Where
    (here its condition depends on an operator that only ONNX Runtime has), the fallback gets it in ONNX's
    form: DequantizeLinear, a float Where and QuantizeLinear."""
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
    """The Where and IsNaN that PyTorch writes after a softmax are removed, because a softmax of 8-bit
    values is never NaN."""
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


def elsewhere(session: vkq.onnx.InferenceSession) -> dict[str, str]:
    """Return a dict from each operator that runs on the CPU to the reason. Check that some operators run
    on the device."""
    rows = session.explain().rows
    assert any(row.where == "device" for row in rows), rows
    return {row.operator: row.why for row in rows if row.where == "CPU"}


def between_bytes(op: str, **attributes: Any) -> list[Any]:
    """Return an operator and a Relu, each between DequantizeLinear and QuantizeLinear."""
    nodes = [helper.make_node("QuantizeLinear", ["x", "qs", "qz"], ["a"])]
    for i, (kind, more) in enumerate(((op, attributes), ("Relu", {}))):
        nodes += [
            helper.make_node("DequantizeLinear", ["ab"[i], "qs", "qz"], [f"f{i}"]),
            helper.make_node(kind, [f"f{i}"], [f"g{i}"], name=kind.lower(), **more),
            helper.make_node("QuantizeLinear", [f"g{i}", "qs", "qz"], ["by"[i]]),
        ]
    return nodes


@pytest.mark.parametrize("when", ["checked", "planned"])
def test_what_a_device_refuses_runs_alone(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The device refuses a softmax on 8-bit values, which has no ONNX form. The fallback then runs the
    Softmax node of the model, and the nodes before and after it stay on the device. This also holds if
    the refusal comes during planning."""

    def refused(*given: Any) -> Any:
        if when == "planned":
            raise vkq.ArgumentError("too long for this device")
        return "too long for this device"

    changed = {"record" if when == "planned" else "check": refused}
    monkeypatch.setitem(ROWS, "softmax", dataclasses.replace(ROWS["softmax"], **changed))
    x = np.random.default_rng(3).standard_normal((3, 7)).astype(np.float32)
    data = model(between_bytes("Softmax", axis=-1), {"x": x}, q("q", 0.03, 5, "int8"), "int8")
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with pytest.warns(FallbackWarning, match="1 of"):
        (got,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(got, onnxruntime_results(data, {"x": x})[0])
    assert elsewhere(session) == {"Softmax": "too long for this device"}
    with pytest.raises(vkq.UnsupportedModelError, match="'softmax': too long for this device"):
        vkq.onnx.InferenceSession(data, any_device).run(None, {"x": x})


def test_loops_that_are_too_long_run_alone(device: vkq.Device) -> None:
    """On a driver that may end long loops, a softmax of 400,000 elements runs in the fallback; on other
    drivers, the device runs it. The bytes are ONNX Runtime's."""
    x = np.random.default_rng(4).standard_normal((1, 400_000)).astype(np.float32)
    x *= np.float32(5e-6)
    data = model(between_bytes("Softmax", axis=-1), {"x": x}, q("q", 1e-7, 100, "int8"), "int8")
    session = vkq.onnx.InferenceSession(data, device, fallback="onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        (got,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(got, onnxruntime_results(data, {"x": x})[0])
    told = elsewhere(session)
    assert told == {} if device.loop_limit is None else "iterations" in told["Softmax"]


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("rank", [3, 4], ids=["lines", "images"])
def test_a_form_of_resize_leaves_the_others_on_the_device(
    any_device: vkq.Device, rank: int, dtype: str
) -> None:
    """vkq supports this form of Resize for float32 only. For 8-bit values Resize runs in the fallback, and
    the other nodes stay on the device, also for 1-D data (N, C, L), which vkq reshapes to images."""
    x = bytes_of((1, 2, 3, 5)[-rank:], "uint8").astype(dtype)
    symmetric = {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["a"], axis=0),
        helper.make_node("Resize", ["a", "", "scales"], ["y"], **symmetric),
    ]
    constants = {"scales": np.array([*[1] * (rank - 1), 2], np.float32)}
    data = model(nodes, {"x": x}, constants, dtype, 19)
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        (got,) = session.run(None, {"x": x})
    np.testing.assert_allclose(got, onnxruntime_results(data, {"x": x})[0], atol=1e-4)
    told = elsewhere(session)
    assert told == {} if dtype == "float32" else "half_pixel_symmetric" in told["Resize"]


def test_a_bias_of_int32_that_is_computed(any_device: vkq.Device) -> None:
    """A computed int32 bias of QLinearConv is not taken for 8-bit values, although it has no zero point."""
    x, bias = bytes_of((1, 3, 4, 5), "uint8"), np.array([700, -900], np.int32)
    constants = q("x", 0.02, 100, "uint8") | q("w", 0.03, 90, "uint8") | q("y", 0.1, 120, "uint8")
    constants["w"] = bytes_of((2, 3, 3, 3), "uint8")
    given = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "bias"]
    feed = {"x": x, "bias": bias}
    data = model([helper.make_node("QLinearConv", given, ["y"])], feed, constants, "uint8")
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        (got,) = session.run(None, feed)
    np.testing.assert_array_equal(got, onnxruntime_results(data, feed)[0])


def test_flags_that_are_compared_with_constants(any_device: vkq.Device) -> None:
    """Equal of bool on the CPU gets both operands in the same type, so no other node leaves the device."""
    kind, flags = helper.make_tensor_value_info, np.array([[True, False, True], [False, False, True]])
    nodes = [helper.make_node("Not", ["x"], ["n"]), helper.make_node("Equal", ["n", "c"], ["y"])]
    stored = [helper.make_tensor("c", 9, flags.shape, flags)]
    graph = helper.make_graph(nodes, "g", [kind("x", 9, (2, 3))], [kind("y", 9, (2, 3))], stored)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (y,) = session.run(None, {"x": flags.copy()})
    assert not y.any()
    assert y.dtype == bool
    assert not [one for one in said if "whole" in str(one.message)]
