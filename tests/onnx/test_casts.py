"""Tests of inputs of types that a device lacks, but that only Casts read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.onnx

from .networks import onnxruntime_results
from .test_operators import model

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def cast(to: int, x: str = "x", y: str = "y") -> Any:
    return helper.make_node("Cast", [x], [y], to=to)


@pytest.mark.parametrize("dtype", ["float64", "uint16", "int16"])
def test_numbers_are_data(device: vkq.Device, dtype: str) -> None:
    """Inputs of other types are uploaded in a type that the device has. New numbers prepare nothing, and the
    results have ONNX Runtime's bits, also of floats that become infinite."""
    nodes = [cast(FLOAT, "x", "f"), helper.make_node("Sqrt", ["f"], ["y"])]
    numbers = {
        "float64": np.array([0.1, 1e-50, 1e300, np.inf]),
        "uint16": np.array([0, 1, 40_000, 65_535]), "int16": np.array([0, 7, 32_767, 400]),
    }[dtype].astype(dtype)  # fmt: skip
    data = model(nodes, {"x": numbers}, {}, "float32")
    session = vkq.onnx.InferenceSession(data, device)
    assert session.get_inputs()[0].type == f"tensor({'double' if dtype == 'float64' else dtype})"
    for x in (numbers, numbers[::-1]):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], onnxruntime_results(data, {"x": x})[0])
    assert len(session._executables.kept) == 1
    assert {row.where for row in session.explain().rows} == {"device"}
    with pytest.raises(vkq.DTypeError, match=f"input 'x' is float32; it must be {dtype}"):
        session.run(None, {"x": np.zeros(4, np.float32)})


def test_flags_of_whole_numbers(device: vkq.Device) -> None:
    """Casts to several types read one input, and each gives ONNX Runtime's result."""
    x = np.array([0, 300, -5, -32_768], np.int16)
    nodes = [cast(BOOL, "x", "b"), cast(TensorProto.UINT8, "x", "u"), cast(INT64, "x", "i"),
             cast(INT64, "b", "bi"), cast(INT64, "u", "ui"), helper.make_node("Sum", ["i", "bi"], ["s"]),
             helper.make_node("Add", ["s", "ui"], ["y"])]  # fmt: skip
    data = model(nodes, {"x": x}, {}, "int64")
    session = vkq.onnx.InferenceSession(data, device)
    want = x.astype(np.int64) + x.astype(bool) + x.astype(np.uint8)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)
    assert not session._constant


def test_what_stays_a_constant(any_device: vkq.Device) -> None:
    """An input that another operator reads counts as a constant, and so does one whose Cast to float16 would
    round twice."""
    x = np.array([0.1, 2.0])
    cases = [
        ([helper.make_node("Sqrt", ["x"], ["s"]), cast(FLOAT, "s")], "float32"),
        ([cast(TensorProto.FLOAT16)], "float16"),
    ]
    for nodes, dtype in cases:
        data = model(nodes, {"x": x}, {}, dtype)
        session = vkq.onnx.InferenceSession(data, any_device)
        assert session._constant == {"x"}
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], onnxruntime_results(data, {"x": x})[0])


def test_with_a_fallback(any_device: vkq.Device) -> None:
    """A node after the Cast runs on the CPU."""
    x = np.array([[1.0, 2.0], [3.0, 5.0]])
    data = model([cast(FLOAT, "x", "f"), helper.make_node("Det", ["f"], ["y"])], {"x": x}, {}, "float32")
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with pytest.warns(vkq.onnx.fallback.FallbackWarning, match="Det"):
        assert session.run(None, {"x": x})[0] == pytest.approx(-1)
