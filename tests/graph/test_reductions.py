"""Tests of reductions of 8-bit values along any axes, compared with ONNX Runtime and with exact sums."""

import numpy as np
import pytest
from onnx import helper

import vkq
import vkq.onnx
from tests.onnx.test_operators import around, bytes_of, check, model, q

# Channels; tokens; axes that are not adjacent; all axes.
AXES = [(1,), (-2,), (0, 3), (0, 1, 2, 3)]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_maximum(any_device: vkq.Device, axes: tuple[int, ...], keep: int) -> None:
    x = bytes_of((2, 5, 6, 7), "uint8")
    node = helper.make_node("ReduceMax", ["a"], ["b"], axes=axes, keepdims=keep)
    check(any_device, model(around(node), {"x": x}, q("x", 0.05, 100, "uint8"), "uint8"), {"x": x})


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_mean(device: vkq.Device, axes: tuple[int, ...], dtype: str) -> None:
    x = bytes_of((2, 5, 6, 7), dtype)
    node = helper.make_node("ReduceMean", ["a"], ["b"], axes=axes, keepdims=0)
    data = model(around(node), {"x": x}, q("x", 0.05, 100, dtype), dtype)
    got = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})[0]
    zero = 100 + np.iinfo(dtype).min
    want = (x.astype(np.float64) - zero).mean(axes)  # x and y have equal scales, so no factor is needed
    assert got.shape == want.shape
    assert np.abs(got.astype(np.float64) - zero - want).max() <= 0.5 + 1e-5


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_real_results(device: vkq.Device, axes: tuple[int, ...], op: str) -> None:
    """A float32 result is an exact integer sum times one float32 factor. Its error is at most two roundings
    of 2^-24 and the error of the scale."""
    x = bytes_of((2, 5, 6, 7), "int8")
    constants = q("x", 0.05, 100, "int8") | {"axes": np.array(axes, np.int64)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node(op, ["a", "axes"], ["y"], keepdims=1),
    ]
    data = model(nodes, {"x": x}, constants, "float32", opset=18)
    got = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})[0]
    sums = (x.astype(np.int64) - constants["xz"].astype(np.int64)).sum(axes, keepdims=True)
    count = x.size // sums.size if op == "ReduceMean" else 1
    want = sums * np.float64(np.float32(0.05)) / count
    assert (got.dtype, got.shape) == (np.float32, want.shape)
    np.testing.assert_allclose(got, want, rtol=2**-22, atol=0)
