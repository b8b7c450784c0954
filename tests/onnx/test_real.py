"""Tests of float operators next to quantized ones, as in transformers, compared with ONNX Runtime:
normalizations, pools, quotients, and a whole block."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkq
import vkq.onnx
from tests.onnx.networks import Net, onnxruntime_results, quantized
from tests.onnx.test_operators import check, model


def run(device: vkq.Device, nodes: list[Any], x: np.ndarray, constants: dict[str, Any]) -> tuple[Any, Any]:
    """Return vkq's result and ONNX Runtime's."""
    data, feed = model(nodes, {"x": x}, constants, "float32", opset=18), {"x": x}
    return vkq.onnx.InferenceSession(data, device).run(None, feed)[0], onnxruntime_results(data, feed)[0]


@pytest.mark.parametrize("axis", [-1, -2])
def test_layer_normalization(device: vkq.Device, axis: int) -> None:
    """LayerNormalization is within 2e-6 of the float64 result, as ONNX Runtime's is."""
    x = np.random.default_rng(7).normal(3, 2, (2, 5, 37)).astype(np.float32)
    scale, bias = (np.random.default_rng(s).normal(1, 0.3, x.shape[axis:]).astype(np.float32) for s in (8, 9))
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], axis=axis, epsilon=1e-4)
    got, other = run(device, [node], x, {"s": scale, "b": bias})
    wide, axes = x.astype(np.float64), tuple(range(axis, 0))
    apart = wide - wide.mean(axes, keepdims=True)
    want = apart / np.sqrt((apart**2).mean(axes, keepdims=True) + np.float32(1e-4)) * scale + bias
    for result in (got, other):
        np.testing.assert_allclose(result, want, rtol=0, atol=2e-6)


def test_instance_normalization(any_device: vkq.Device) -> None:
    """InstanceNormalization is within 4e-6 of ONNX Runtime's, whose sums round differently."""
    x = np.random.default_rng(7).normal(3, 2, (2, 5, 7, 6)).astype(np.float32)
    scale, bias = (np.random.default_rng(s).normal(1, 0.3, 5).astype(np.float32) for s in (8, 9))
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])
    got, want = run(any_device, [node], x, {"s": scale, "b": bias})
    np.testing.assert_allclose(got, want, rtol=0, atol=4e-6)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools_of_float16(device: vkq.Device, op: str) -> None:
    """float16 pools between a convolution and a sum, as in a float16 ResNet, return the maximum of rounded
    values, or the mean rounded once."""
    random = np.random.default_rng(7)
    x = random.normal(0, 2, (2, 3, 9, 11)).astype(np.float16)
    w = random.normal(0, 0.2, (5, 3, 3, 3)).astype(np.float16)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node(op, ["c"], ["p"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
        helper.make_node("Add", ["p", "p"], ["y"]),
    ]
    data, feed = model(nodes, {"x": x}, {"w": w}, "float16", opset=18), {"x": x}
    session = vkq.onnx.InferenceSession(data, device)
    got, want = session.run(None, feed)[0], onnxruntime_results(data, feed)[0]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceSumSquare"])
def test_norms(any_device: vkq.Device, op: str) -> None:
    x = np.random.default_rng(7).normal(0, 2, (2, 5, 6)).astype(np.float32)
    for axes in ([1], [0, 2]):
        node = helper.make_node(op, ["x", "axes"], ["y"], keepdims=1)
        got, want = run(any_device, [node], x, {"axes": np.array(axes)})
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("ops", [["Reciprocal"], ["Abs", "Reciprocal"], ["Sqrt", "Reciprocal"]], ids=str)
def test_what_divides_by_zeros_and_subnormal_numbers(device: vkq.Device, ops: list[str]) -> None:
    """Quotients by zero are infinities with ONNX Runtime's signs. Subnormal divisors count as zeros."""
    x = np.float32([0.0, -0.0, 1e-38, -6e-39, 3.0])
    zeros = np.float32([0.0, -0.0, 0.0, -0.0, 3.0])
    names = ["x", "t", "y"] if len(ops) > 1 else ["x", "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(ops)]
    np.testing.assert_array_equal(run(device, nodes, x, {})[0], run(device, nodes, zeros, {})[1])


@pytest.mark.parametrize("form", ["qdq_int8", "qoperator_uint8"])
def test_a_transformer_block(device: vkq.Device, tmp_path, form: str) -> None:
    """A quantized block of ConvNeXt (depthwise convolution, LayerNormalization, products, GELU, residual)
    gives ONNX Runtime's results."""
    net = Net(seed=11, shape=(1, 8, 6, 6))
    x = net.conv("x", 8, 3, groups=8)
    last = net.op("Transpose", x, perm=[0, 2, 3, 1])
    ones = [net.constant(net.random.normal(1, 0.2, 8).astype(np.float32)) for _ in range(2)]
    y = net.op("LayerNormalization", last, *ones, axis=-1)
    y = net.op("Gelu", net.op("MatMul", y, net.weight(8, 16)))
    y = net.op("Transpose", net.op("MatMul", y, net.weight(16, 8)), perm=[0, 3, 1, 2])
    net.opset = 20
    data = quantized(net.model(net.op("Add", "x", y)), form, tmp_path, net.shape)
    feed = {"x": np.random.default_rng(12).normal(0, 1.2, net.shape).astype(np.float32)}
    got = vkq.onnx.InferenceSession(data, device).run(None, feed)[0]
    np.testing.assert_array_equal(got, onnxruntime_results(data, feed)[0])


WINDOWS = {
    "margins": {"kernel_shape": [3, 3], "strides": [1, 2], "pads": [1, 1, 1, 1]},
    "beyond": {
        "kernel_shape": [2, 3],
        "strides": [2, 1],
        "pads": [0, 1, 1, 0],
        "dilations": [1, 2],
        "ceil_mode": 1,
    },
    "beyond margins": {"kernel_shape": [4, 4], "strides": [2, 3], "pads": [1, 2, 1, 2], "ceil_mode": 1},
    "apart": {"kernel_shape": [1, 2], "strides": [3, 7]},
}


@pytest.mark.parametrize("options", WINDOWS.values(), ids=WINDOWS.keys())
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "AveragePool with margins"])
def test_pools(device: vkq.Device, op: str, options: dict[str, Any]) -> None:
    """float32 pools give ONNX Runtime's values, also for windows beyond the padding, and for windows that
    read no row or no column."""
    x = np.random.default_rng(8).normal(-3, 1, (2, 3, 9, 32)).astype(np.float32)
    more: dict[str, Any] = {"count_include_pad": 1} if op.endswith("margins") else {}
    node = helper.make_node(op.partition(" ")[0], ["x"], ["y"], **options, **more)
    check(device, model([node], {"x": x}, {}, "float32", opset=19), {"x": x})


@pytest.mark.parametrize("shape", [(2, 5, 3, 7), (4, 5)])
def test_batch_normalization(device: vkq.Device, shape: tuple[int, ...]) -> None:
    """BatchNormalization gives ONNX Runtime's values."""
    r = np.random.default_rng(9)
    numbers = (r.normal(1, 0.2, 5), r.normal(0, 1, 5), r.normal(0, 1, 5), r.uniform(0.5, 2, 5))
    constants = {name: array.astype(np.float32) for name, array in zip("sbmv", numbers, strict=True)}
    x = r.normal(0, 2, shape).astype(np.float32)
    node = helper.make_node("BatchNormalization", ["x", *"sbmv"], ["y"])
    check(device, model([node], {"x": x}, constants, "float32"), {"x": x})
