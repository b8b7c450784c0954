"""Tests of models that onnxruntime.quantization.quantize_dynamic writes: they compute the scales and zero
points of activations in each run."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import vkq
import vkq.onnx
from tests.onnx.networks import KINDS, Net, onnxruntime_results
from tests.onnx.test_operators import bytes_of, check, model
from vkq.graph.graph import Node
from vkq.graph.operators.table import compute
from vkq.problem.conv2d import Conv2dProblem
from vkq.reference.layers import convolve

FORMS = {
    "uint8": (QuantType.QUInt8, False),
    "int8": (QuantType.QInt8, False),
    "columns": (QuantType.QInt8, True),
}


def cnn() -> tuple[Net, str]:
    """Return a network for images that are not square, with stride, padding, a pool, a dilated depthwise
    convolution and a 1x1 convolution."""
    net = Net(seed=2, shape=(2, 3, 10, 23))
    y = net.relu(net.conv("x", 6, 3, 2))
    y = net.op("MaxPool", y, kernel_shape=[3, 3], strides=[1, 2], pads=[1, 1, 1, 1])
    y = net.conv(net.relu(net.conv(y, 6, 3, groups=6, dilation=2)), 4, 1)
    bias = net.constant(net.random.normal(0, 0.1, 10).astype(np.float32))
    return net, str(net.op("Gemm", net.op("Flatten", y, axis=1), net.weight(10, 4 * 5 * 6), bias, transB=1))


def mlp() -> tuple[Net, str]:
    """Return a network of products of batched rows; one product has no bias."""
    net = Net(seed=3, shape=(2, 5, 9))
    bias = net.constant(net.random.normal(0, 0.1, 7).astype(np.float32))
    y = net.relu(net.op("Add", net.op("MatMul", "x", net.weight(9, 7)), bias))
    return net, str(net.op("MatMul", y, net.weight(7, 6)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [cnn, mlp])
def test_networks(device: vkq.Device, tmp_path: Path, make: Any, form: str) -> None:
    """Networks give ONNX Runtime's bytes for inputs whose zero points are in the middle and at both ends of
    the range."""
    net, result = make()
    kind, per_channel = FORMS[form]
    quantize_dynamic(net.model(result), tmp_path / "q.onnx", weight_type=kind, per_channel=per_channel)
    data = (tmp_path / "q.onnx").read_bytes()
    session = vkq.onnx.InferenceSession(data, device)
    x = np.random.default_rng(4).normal(0.3, 1, net.shape).astype(np.float32)
    for feed in ({"x": x}, {"x": np.abs(x) * 7}, {"x": -np.abs(x)}, {"x": 0 * x}):
        np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data, feed)[0])


@pytest.mark.parametrize(("name", "bound"), [("unet", 0), ("inception", 2**-22), ("densenet", 2**-22)])
def test_known_networks(any_device: vkq.Device, tmp_path: Path, name: str, bound: float) -> None:
    """Results of well-known networks, with pools, movement and BatchNormalization between products, differ
    from ONNX Runtime's by at most *bound*. The bound is not 0 for means, whose terms ONNX Runtime adds in
    another order."""
    net = Net(seed=7)
    model = net.model(*KINDS[name](net))
    quantize_dynamic(model, tmp_path / "q.onnx", weight_type=QuantType.QInt8, per_channel=True)
    data = (tmp_path / "q.onnx").read_bytes()
    feed = {"x": np.random.default_rng(3).normal(0, 1, net.shape).astype(np.float32)}
    want = onnxruntime_results(data, feed)[0]
    got = vkq.onnx.InferenceSession(data, any_device).run(None, feed)[0]
    np.testing.assert_allclose(got, want, rtol=0, atol=bound * np.abs(want).max())


DYNAMIC = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(device: vkq.Device, groups: int, dtype: str) -> None:
    """ConvInteger is exact with different padding on each side, and with a weight zero point for each
    channel. Padding has the value of x's zero point."""
    x = np.random.default_rng(5).normal(0.4, 1, (2, 4, 5, 7)).astype(np.float32)
    w, zero = bytes_of((6, 4 // groups, 3, 2), dtype), bytes_of((6,), dtype, 6)
    options = {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2], "group": groups}
    node = helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["y"], **options)
    data = model([DYNAMIC, node], {"x": x}, {"w": w, "wz": zero}, "int32")
    p = Conv2dProblem.of(
        x.shape, w.shape, stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2), groups=groups
    )
    for image in (x, np.abs(x), -np.abs(x)):
        low, high = min(image.min(), 0), max(image.max(), 0)
        scale = np.float32((high - low) / np.float32(255))
        middle = np.clip(np.rint(-low / scale), 0, 255)
        taken = np.clip(np.rint(image / scale) + middle, 0, 255) - middle
        want = convolve(taken.astype(np.float64), w.astype(np.float64) - zero.reshape(-1, 1, 1, 1), p)
        got = vkq.onnx.InferenceSession(data, device).run(None, {"x": image})[0]
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, want.astype(np.int64))


def test_product_of_two(device: vkq.Device) -> None:
    """A product of two activations, as in attention, quantizes both operands in each run, and gives ONNX
    Runtime's sums."""
    feed = {
        "x": bytes_of((2, 5, 9), "int8").astype(np.float32),
        "v": bytes_of((2, 9, 6), "int8", 1) / np.float32(3),
    }
    other = helper.make_node("DynamicQuantizeLinear", ["v"], ["vq", "vs", "vz"])
    node = helper.make_node("MatMulInteger", ["q", "vq", "z", "vz"], ["y"])
    check(device, model([DYNAMIC, other, node], feed, {}, "int32"), feed)


def test_refused(any_device: vkq.Device) -> None:
    """ConvInteger with an input zero point for each channel raises an error, because ONNX does not allow
    it."""
    x, w = bytes_of((1, 3, 4, 4), "uint8"), bytes_of((2, 3, 1, 1), "uint8")
    node = helper.make_node("ConvInteger", ["x", "w", "z"], ["y"])
    data = model([node], {"x": x}, {"w": w, "z": np.zeros(3, np.uint8)}, "int32")
    with pytest.raises(vkq.onnx.UnsupportedModelError, match="one element"):
        vkq.onnx.InferenceSession(data, any_device)


FAR = [np.inf, -np.inf, 3.4e38, -3.4e38, 2e38, np.finfo(np.float32).max, -1e-45]


@pytest.mark.parametrize("seed", range(3))
def test_ranges_that_are_infinite(device: vkq.Device, seed: int) -> None:
    """DynamicQuantizeLinear of ranges beyond float32 gives ONNX Runtime's results: if max - min overflows,
    the scale is infinite."""
    outputs = [("y", TensorProto.UINT8), ("s", TensorProto.FLOAT), ("z", TensorProto.UINT8)]
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = vkq.onnx.InferenceSession(model, device)
    beside = ort.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(seed)
    for pair in itertools.product(FAR, FAR):
        x = rng.standard_normal(67).astype(np.float32)
        x[rng.choice(67, 2, replace=False)] = pair
        want, got = beside.run(None, {"x": x}), session.run(None, {"x": x})
        oracle = compute(Node("DynamicQuantizeLinear", ("x",), ("y", "s", "z")), [x])
        for a, b, c in zip(want, got, oracle, strict=True):
            np.testing.assert_array_equal(b, a, err_msg=str(pair))
            np.testing.assert_array_equal(c, a, err_msg=str(pair))
