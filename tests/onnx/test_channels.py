"""Tests of depthwise convolutions whose activations have a scale for each channel, as NNCF writes. Integer
sums are exact, and are then multiplied by the scales of the channel and the weight."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import vkq
import vkq.onnx


def depthwise(times: int, zero: int, channels: int = 6) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    random = np.random.default_rng(times)
    data = {
        "sx": random.uniform(0.01, 0.05, channels).astype(np.float32),
        "zx": np.full(channels, zero, np.uint8),
        "w": random.integers(-127, 128, (channels * times, 1, 3, 3)).astype(np.int8),
        "sw": random.uniform(0.001, 0.01, channels * times).astype(np.float32),
        "b": random.integers(-3000, 3000, channels * times).astype(np.int32),
        "sy": np.array(0.05, np.float32),
        "zy": np.array(120, np.uint8),
    }
    data["sb"] = np.repeat(data["sx"], times) * data["sw"]
    make = helper.make_node
    nodes = [
        make("QuantizeLinear", ["x", "sx", "zx"], ["q"], axis=1),
        make("DequantizeLinear", ["q", "sx", "zx"], ["a"], axis=1),
        make("DequantizeLinear", ["w", "sw"], ["c"], axis=0),
        make("DequantizeLinear", ["b", "sb"], ["d"], axis=0),
        make("Conv", ["a", "c", "d"], ["e"], group=channels, pads=[1, 1, 1, 1], strides=[2, 1]),
        make("QuantizeLinear", ["e", "sy", "zy"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "channels", [helper.make_tensor_value_info("x", 1, [2, channels, 9, 7])],
        [helper.make_tensor_value_info("y", 2, None), helper.make_tensor_value_info("q", 2, None)],
        [numpy_helper.from_array(array, name) for name, array in data.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), data


@pytest.mark.parametrize(("times", "zero"), [(1, 0), (2, 128)])
def test_depthwise_convolution_is_exact(device: vkq.Device, times: int, zero: int) -> None:
    proto, data = depthwise(times, zero)
    session = vkq.onnx.InferenceSession(proto, device)
    nodes = session.lowered({"x": (2, 6, 9, 7)}).nodes
    assert [node.op for node in nodes] == ["QuantizeLinear", "conv2d"]
    assert nodes[1].attributes["y"] is not None
    x = np.random.default_rng(5).uniform(-2, 4, (2, 6, 9, 7)).astype(np.float32)
    y, q = session.run(None, {"x": x})
    padded = np.pad(q.astype(np.int64) - zero, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2]
    sums = np.einsum("nchwij,cij->nchw", windows.repeat(times, 1), data["w"][:, 0].astype(np.int64))
    sums += data["b"].reshape(-1, 1, 1)
    factors = (data["sb"] / data["sy"]).reshape(-1, 1, 1)
    wanted = np.clip(np.rint(sums.astype(np.float32) * factors) + 120, 0, 255)
    np.testing.assert_array_equal(y, wanted)
    assert len(np.unique(y)) > 100
