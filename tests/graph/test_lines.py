"""Tests of 1-D operators (N, C, L), as in audio networks, compared with ONNX Runtime."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

import vkq
import vkq.onnx
from tests.conftest import share
from tests.onnx.test_operators import around, bytes_of, check, model, q
from vkq.check.graph import run
from vkq.graph.passes import lower

POOLS: dict[str, dict[str, Any]] = {
    "MaxPool": {"kernel_shape": [3], "strides": [2], "pads": [1, 0]},
    "AveragePool": {"kernel_shape": [2], "strides": [2]},
    "GlobalAveragePool": {},
}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_convolution(device: vkq.Device, dtype: str) -> None:
    """1-D convolutions give ONNX Runtime's bytes with dilation, groups, strides, and padding at the start
    alone, as in causal convolutions."""
    x, rng = bytes_of((2, 6, 19), dtype), np.random.default_rng(0)
    constants = q("x", 0.03, 100, dtype) | q("y", 0.1, 120, dtype) | {
        "w": rng.integers(-127, 128, (4, 3, 3)).astype(np.int8), "wz": np.zeros(4, np.int8),
        "ws": rng.uniform(0.001, 0.01, 4).astype(np.float32),
        "b": rng.integers(-900, 900, 4).astype(np.int32),
    }  # fmt: skip
    inputs = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    options = {"kernel_shape": [3], "pads": [4, 0], "dilations": [2], "strides": [2], "group": 2}
    node = helper.make_node("QLinearConv", inputs, ["y"], **options)
    check(device, model([node], {"x": x}, constants, dtype), {"x": x})


@pytest.mark.parametrize("op", POOLS)
def test_pools(any_device: vkq.Device, op: str) -> None:
    x = bytes_of((2, 5, 17), "uint8")
    node = helper.make_node(op, ["a"], ["b"], **POOLS[op])
    check(any_device, model(around(node), {"x": x}, q("x", 0.05, 100, "uint8"), "uint8"), {"x": x})


def test_nearest_resize(any_device: vkq.Device) -> None:
    x = bytes_of((1, 3, 7), "uint8")
    node = helper.make_node("Resize", ["a", "", "scales"], ["b"], mode="nearest")
    constants = q("x", 0.05, 100, "uint8") | {"scales": np.array([1, 1, 2.5], np.float32)}
    check(any_device, model(around(node), {"x": x}, constants, "uint8"), {"x": x})


def dequantized(axis: int, scales: tuple[int, ...], **blocks: int) -> tuple[list[Any], dict[str, Any]]:
    """Return the nodes and constants of a 1-D convolution from 6 to 4 channels with a dequantized weight."""
    rng = np.random.default_rng(3)
    constants = q("x", 0.03, 100, "uint8") | q("y", 0.1, 120, "uint8") | {
        "w": rng.integers(-127, 128, (4, 6, 3)).astype(np.int8),
        "ws": rng.uniform(0.001, 0.01, scales).astype(np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["c"], axis=axis, **blocks),
        helper.make_node("Conv", ["a", "c"], ["b"], kernel_shape=[3]),
        helper.make_node("QuantizeLinear", ["b", "ys", "yz"], ["y"]),
    ]
    return nodes, constants


@pytest.mark.parametrize("axis", [0, -3])
def test_scales_along_an_axis_that_counts_from_either_end(any_device: vkq.Device, axis: int) -> None:
    """The axis of the weight's scales may be counted from the start or the end, although vkq adds an axis
    to the weight."""
    x = bytes_of((2, 6, 19), "uint8")
    nodes, constants = dequantized(axis, (4,))
    check(any_device, model(nodes, {"x": x}, constants, "uint8"), {"x": x})


def test_scales_of_blocks_are_a_float_weight(any_device: vkq.Device) -> None:
    x = bytes_of((2, 6, 19), "uint8")
    nodes, constants = dequantized(1, (4, 3, 3), block_size=2)
    constants = {name: value for name, value in constants.items() if name not in ("ys", "yz")}
    nodes[2:] = [helper.make_node("Conv", ["a", "c"], ["y"], kernel_shape=[3])]
    data = model(nodes, {"x": x}, constants, "float32", opset=21)
    session = vkq.onnx.InferenceSession(data, any_device)
    assert "conv2d_f32__" in str(session.explain())
    (ours,) = session.run(None, {"x": x})
    (theirs,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)  # the libraries add in different orders


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("real", [False, True], ids=["bytes", "numbers"])
def test_linear_resize(device: vkq.Device, real: bool, soft: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear Resize of 1-D data (N, C, L) gives ONNX Runtime's bytes, for 8-bit and dequantized data. Many
    results are near ties. (ONNX Runtime treats the data as a volume, so the order in which it adds the
    terms of a result differs for the last channel and the last image: `vkq.reference.resize._of_lines`.)"""
    monkeypatch.setattr(device, "_soft_float", soft)
    rng = np.random.default_rng(4)
    sizes = (((2, 3, 7), 19), ((1, 1, 5), 12), ((3, 18, 13), 4), ((2, 5, 1), 3), ((1, 6, 9), 26))
    for shape, size in share(sizes, device, 2):
        x, constants = rng.integers(0, 256, shape).astype(np.uint8), q("x", 0.1, 47, "uint8")
        constants["n"] = np.array([*shape[:2], size])
        given, result = ("a", "b") if real else ("x", "y")
        node = helper.make_node("Resize", [given, "", "", "n"], [result], mode="linear")
        data = model(around(node) if real else [node], {"x": x}, constants, "uint8", 19)
        check(device, data, {"x": x})
        session = vkq.onnx.InferenceSession(data, device)
        got = run(lower(session.model.at({"x": shape})), {"x": x})["y"]  # run the lowered graph in NumPy
        np.testing.assert_array_equal(got, session.run(None, {"x": x})[0])
