"""Networks with depthwise convolutions in the dispatch of the 1x1 behind them: the bytes of both apart."""

import re
from pathlib import Path

import numpy as np
import pytest

import vkq
import vkq.onnx
from tests.onnx.networks import KINDS, Net, quantized
from vkq.device.profiles import preferred
from vkq.kernels.depthwise_pointwise import SHADER


def test_a_network(any_device: vkq.Device, tmp_path: Path) -> None:
    """Two with a residual, in place of an operand and apart from it, one between sizes; every value is
    compared with what it was."""
    net = Net(seed=12, shape=(2, 3, 18, 22))
    model = quantized(net.model(*KINDS["mobilenet_v2"](net)), "qdq_uint8", tmp_path, net.shape)
    feed = {"x": np.random.default_rng(3).normal(0, 1.2, net.shape).astype(np.float32)}
    apart, together = (vkq.onnx.InferenceSession(model, any_device) for _ in range(2))
    with preferred({"depthwise_fused": False}):
        want, plain = apart.run(None, feed), str(apart.explain({"x": net.shape}))
    with preferred({"depthwise_fused": True}):
        got, fused = together.run(None, feed), str(together.explain({"x": net.shape}))
    np.testing.assert_array_equal(got[0], want[0], strict=True)
    assert SHADER not in plain
    assert fused.count(SHADER) == 3
    assert fused.count("in the dispatch of the 1x1 behind it") == 3
    assert dispatches(plain) - dispatches(fused) == 3
    saved = [a - b for a, b in zip(traffic(plain), traffic(fused), strict=True)]
    assert saved[0] == saved[1] == sum(map(int, re.findall(r"(\d+) bytes stay on chip", fused)))


def dispatches(report: str) -> int:
    return int(report.split(" dispatches")[0].rsplit("\n", 1)[1])


def traffic(report: str) -> tuple[int, int]:
    """Bytes of intermediate values that are read, and written."""
    found = re.search(r"dispatches read (\d+) bytes of them and write (\d+)", report)
    assert found is not None
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("hidden", ["read twice", "a result", "not depthwise"])
def test_what_stays_apart(any_device: vkq.Device, tmp_path: Path, hidden: str) -> None:
    net = Net(seed=4, shape=(1, 3, 9, 9))
    between = net.relu(net.conv(net.conv("x", 6, 1), 6, 3, groups=2 if hidden == "not depthwise" else 6))
    results = [net.conv(between, 5, 1)]
    results += {"read twice": [net.conv(between, 5, 1)], "a result": [between]}.get(hidden, [])
    model = quantized(net.model(*results), "qdq_int8", tmp_path, net.shape)
    feed = {"x": np.random.default_rng(3).normal(0, 1.2, net.shape).astype(np.float32)}
    with preferred({"depthwise_fused": True}):
        session = vkq.onnx.InferenceSession(model, any_device)
        session.run(None, feed)
        assert SHADER not in str(session.explain({"x": net.shape}))
