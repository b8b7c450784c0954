"""Tests that the reference of element-wise, pooling, resize and table operators equals ONNX Runtime, byte
for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkq import QParams, reference
from vkq.errors import ArgumentError
from vkq.numerics.qparams import QDType
from vkq.problem.window import Window

from ..referees import node_tests, ort_ops

DTYPES: list[QDType] = ["int8", "uint8"]


def _point(rng: np.random.Generator, dtype: QDType) -> int:
    info = np.iinfo(dtype)
    return int(rng.choice([info.min, info.max, 0, int(rng.integers(info.min, info.max + 1))]))


def _random_window(rng: np.random.Generator, dilate: bool) -> Window:
    """Return a random valid window. Images may have one pixel, strides may be larger than the kernel, padding
    may be asymmetric, and ceil mode may be on."""
    while True:
        shape = (1, 3, *(int(v) for v in rng.integers(1, 12, 2)))
        kernel, stride = rng.integers(1, 5, 2).tolist(), rng.integers(1, 5, 2).tolist()
        dilation = rng.integers(1, 4, 2).tolist() if dilate else 1
        padding = [int(rng.integers(0, kernel[i % 2])) for i in range(4)]
        try:
            return Window.of("pool", shape, kernel, stride, padding, dilation, bool(rng.integers(2)))
        except ArgumentError:
            continue


def _attributes(window: Window) -> dict[str, Any]:
    return {
        "kernel_shape": window.kernel, "strides": window.stride, "pads": window.padding,
        "ceil_mode": int(window.ceil_mode),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_max_pool_equals_onnxruntime(dtype: QDType) -> None:
    rng = np.random.default_rng(5)
    for _ in range(150):
        window = _random_window(rng, True)
        x = rng.integers(0, 256, window.x_shape).astype(np.uint8).view(dtype)
        want = ort_ops.run("MaxPool", [x], dtype, dilations=window.dilation, **_attributes(window))
        np.testing.assert_array_equal(reference.max_pool2d(x, window), want, err_msg=str(window))


def test_max_pool_passes_the_onnx_node_test() -> None:
    case = node_tests.load("test_maxpool_2d_uint8")
    window = Window.of("max_pool2d", case.inputs[0].shape, **_pytorch_names(case.attributes))
    np.testing.assert_array_equal(reference.max_pool2d(case.inputs[0], window), case.outputs[0])


def _pytorch_names(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an ONNX pooling node under PyTorch's names."""
    return {
        "kernel": attributes["kernel_shape"],
        "stride": attributes.get("strides", 1),
        "padding": attributes.get("pads", 0),
        "dilation": attributes.get("dilations", 1),
        "ceil_mode": bool(attributes.get("ceil_mode", 0)),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("include", [False, True])
def test_average_pool_equals_onnxruntime(dtype: QDType, include: bool) -> None:
    """The average pool equals ONNX Runtime's, also at ties: with equal scales, a quarter of the means of
    four elements are ties."""
    rng = np.random.default_rng(6)
    for i in range(150):
        window = _random_window(rng, False)
        x = rng.integers(0, 256, window.x_shape).astype(np.uint8).view(dtype)
        xq = QParams(float(10 ** rng.uniform(-2, 1)), _point(rng, dtype), dtype)
        yq = QParams(xq.scale * (1.0 if i % 2 else float(rng.uniform(0.3, 1.5))), _point(rng, dtype), dtype)
        inputs = [x, *ort_ops.parameters(xq), *ort_ops.parameters(yq)]
        want = ort_ops.run(
            "QLinearAveragePool", inputs, dtype, count_include_pad=int(include), **_attributes(window)
        )
        got = reference.avg_pool2d(x, window, xq, yq, include)
        np.testing.assert_array_equal(got, want, err_msg=f"{window} {xq} {yq}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 5), (5, 4)], ids="{0[0]}x{0[1]}".format)
def test_average_pool_of_the_image_equals_onnxruntime(dtype: QDType, size: tuple[int, int]) -> None:
    """The average pool of a whole image equals ONNX Runtime's. If the kernel covers the image without
    padding, ONNX Runtime uses a formula that rounds ties differently; with padding, it uses the usual one."""
    rng = np.random.default_rng(8)
    for i in range(24):
        pads = (0, 0, i % 3 // 2, i % 3 // 2)
        kernel = size[0] + pads[2], size[1] + pads[3]
        window = Window.of("x", (1, 40, *size), kernel, 1 + i % 2, pads, 1, False)
        assert window.whole == (i % 3 < 2)
        x = rng.integers(0, 256, window.x_shape).astype(np.uint8).view(dtype)
        scales = rng.choice([1 / 16, 1 / 60, 1 / 30, 0.05], 2, replace=False)
        xq, yq = (QParams(float(np.float32(v)), _point(rng, dtype), dtype) for v in scales)
        inputs = [x, *ort_ops.parameters(xq), *ort_ops.parameters(yq)]
        want = ort_ops.run("QLinearAveragePool", inputs, dtype, count_include_pad=0, **_attributes(window))
        got = reference.avg_pool2d(x, window, xq, yq, False)
        np.testing.assert_array_equal(got, want, err_msg=f"{window} {xq} {yq}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_global_average_pool_equals_onnxruntime(dtype: QDType) -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        shape = (2, *(int(v) for v in rng.integers(1, (40, 20, 20))))
        x = rng.integers(0, 256, shape).astype(np.uint8).view(dtype)
        xq = QParams(2.0 ** float(rng.integers(-6, 2)), _point(rng, dtype), dtype)
        yq = QParams(xq.scale / 4 * float(rng.choice([1, 1, 0.7])), _point(rng, dtype), dtype)
        inputs = [x, *ort_ops.parameters(xq), *ort_ops.parameters(yq)]
        want = ort_ops.run("QLinearGlobalAveragePool", inputs, dtype, channels_last=0)
        np.testing.assert_array_equal(reference.global_avg_pool(x, xq, yq), want)
