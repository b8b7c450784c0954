"""Tests that vkq on a device equals ONNX Runtime's CPU provider bit for bit, for seeded random problems and
for ONNX's node tests."""

import numpy as np
import pytest

import vkq
from tests.conftest import share

from ..cases import random_conv2d, random_data, random_linear
from ..referees import node_tests, ort
from .run import PATHS, assert_same_bits, run

CASES = 320  # number of random problems on lavapipe; each runs on one path, alternating


@pytest.mark.parametrize(("x_dtype", "w_dtype"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
def test_corpus(x_dtype: str, w_dtype: str, device: vkq.Device) -> None:
    rng = np.random.default_rng(100)
    ranges = ort.exact_int8_weights() if w_dtype == "int8" else None
    for i in share(range(CASES // 3 + 1), device, 5):
        conv = i % 2 == 0
        problem = random_conv2d(rng) if conv else random_linear(rng)
        if not conv and len(problem.y_shape) < 2:
            continue  # QLinearMatMul treats vectors differently
        points = "tensor" if w_dtype == "uint8" else "none"
        data = random_data(problem, rng, x_dtype, w_dtype, w_range=ranges, w_zero_points=points)  # type: ignore[arg-type]
        bias = data.bias if conv else None  # QLinearMatMul has no bias
        got = run(data, data.y_q, device, PATHS[i // 2 % len(PATHS)], bias=bias)
        assert_same_bits(got, ort.qlinear(data))


NODE_TESTS = [
    "test_qlinearconv",
    *(
        f"test_qlinearmatmul_{d}_{t}_{f}"
        for d in ("2D", "3D")
        for t in ("int8", "uint8")
        for f in ("float16", "float32")
    ),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", NODE_TESTS)
def test_node_tests(name: str, path: str, device: vkq.Device) -> None:
    test = node_tests.load(name)
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = test.inputs
    conv = name == "test_qlinearconv"
    op = vkq.conv2d if conv else vkq.linear
    weights = [w] if conv or w.ndim == 2 else list(w)  # a batch of matrices needs a layer for each
    xs = [x] if len(weights) == 1 else list(x)
    results = [
        op(
            part,
            weight if conv else np.ascontiguousarray(weight.T),
            np.float32(w_scale),
            x_qparams=vkq.QParams.of(np.float32(x_scale), x_zero),
            y_qparams=vkq.QParams.of(np.float32(y_scale), y_zero),
            w_zero_point=w_zero,
            path=path,
            device=device,
        )
        for part, weight in zip(xs, weights, strict=True)
    ]
    got = results[0] if len(results) == 1 else np.stack(results)
    assert_same_bits(got.reshape(test.outputs[0].shape), test.outputs[0])


def test_quantizelinear_node_tests(device: vkq.Device) -> None:
    x, scale, zero = node_tests.load("test_quantizelinear").inputs
    got = vkq.quantize(x, vkq.QParams.of(scale, zero), device=device)
    assert_same_bits(got, node_tests.load("test_quantizelinear").outputs[0])
    x, scale, zero = node_tests.load("test_dequantizelinear").inputs
    got = vkq.dequantize(x, vkq.QParams.of(scale, zero), device=device)
    assert_same_bits(got, node_tests.load("test_dequantizelinear").outputs[0])
