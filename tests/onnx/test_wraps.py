"""Tests of sums that exceed int32. They occur in dead channels of trained networks:
onnxruntime.quantization raises the bias of a channel without weights to 2**31 / 1.0001. ONNX Runtime's
integer kernels wrap these sums, its float kernels do not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkq
import vkq.onnx
from vkq.check.graph import run
from vkq.graph.passes import lower

from .networks import onnxruntime_results
from .test_operators import bytes_of, check, model, q

FAR = int((2**31 - 1) / 1.0001)
SCALES = np.array([2e-3, 1e-3, 3e-3, 4e-3, 1e-3, 2e-3], np.float32)


def layer(op: str, shape: tuple[int, ...], w: np.ndarray, behind: str, dtype: str, **options: Any) -> Any:
    """Return (model, feed): DequantizeLinear, a layer with biases at both ends of int32, and the operators
    named by *behind*."""
    x, axis = bytes_of(shape, dtype), 1 if op in ("ConvTranspose", "Gemm") else 0
    scales = np.resize(SCALES, w.shape[axis])
    bias = np.resize(np.array([FAR, -FAR, 700, 2**31 - 1, -(2**31), -900]), len(scales)).astype(np.int32)
    constants = q("x", 0.03, 100, dtype) | q("y", 9e4, 120, dtype) | {
        "w": w, "ws": scales, "wz": np.zeros(len(scales), np.int8), "b": bias,
        "bs": np.float32(0.03) * scales,
        "low": np.float32(-1e5), "high": np.float32(2e5),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["k"], axis=axis),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["d"], axis=0),
        helper.make_node(op, ["a", "k", "d"], ["c" if behind else "y"], name="layer", **options),
    ]
    if "clip" in behind:
        nodes.append(helper.make_node("Clip", ["c", "low", "high"], ["l"]))
    if behind:
        nodes.append(helper.make_node("QuantizeLinear", [nodes[-1].output[0], "ys", "yz"], ["y"]))
    return model(nodes, {"x": x}, constants, dtype if behind else "float32"), {"x": x}


def weight(*shape: int) -> np.ndarray:
    """Return weights of 7 bits. With 8 bits, two products with uint8 may exceed int16, where ONNX Runtime
    saturates on CPUs without VNNI."""
    return np.random.default_rng(2).integers(-64, 64, shape).astype(np.int8)


KINDS: dict[str, Any] = {
    "dense": ("Conv", (2, 70, 7, 9), weight(6, 70, 3, 3), {"pads": [1, 1, 1, 1]}),
    "pointwise": ("Conv", (1, 900, 3, 5), weight(6, 900, 1, 1), {}),
    "depthwise": ("Conv", (1, 12, 9, 11), weight(12, 1, 5, 5), {"group": 12, "pads": [2, 2, 2, 2]}),
    "grouped": ("Conv", (1, 60, 8, 5), weight(12, 30, 3, 2), {"group": 2, "strides": [2, 1]}),
    "line": ("Conv", (1, 33, 21), weight(6, 33, 5), {}),
    "rows": ("Gemm", (5, 700), weight(700, 6), {}),
}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("kind", KINDS)
def test_quantized_layers_wrap(device: vkq.Device, kind: str, dtype: str) -> None:
    op, shape, w, options = KINDS[kind]
    data, feed = layer(op, shape, w, "quantize", dtype, **options)
    check(device, data, feed)
    session = vkq.onnx.InferenceSession(data, device)
    told = " ".join(row.why for row in session.explain().rows)
    assert re.search("sums may overflow int32, and wrap, in output channels (0, 1, )?3, 4", told)
    graph = lower(session.model.at({"x": shape}))
    # NumPy gives the device's bytes for the lowered graph.
    np.testing.assert_array_equal(run(graph, feed)["y"], session.run(None, feed)[0])


def test_rows_of_float_results_wrap(device: vkq.Device) -> None:
    op, shape, w, options = KINDS["rows"]
    data, feed = layer(op, shape, w, "", "uint8", **options)
    (got,), (want,) = vkq.onnx.InferenceSession(data, device).run(None, feed), onnxruntime_results(data, feed)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert (want[:, 3] < 0).any()  # the sums with the largest bias wrap


@pytest.mark.parametrize(
    ("kind", "behind"),
    [("dense", ""), ("depthwise", ""), ("dense", "clip, quantize"), ("rows", "clip, quantize")],
)
def test_layers_that_onnxruntime_computes_in_floats_do_not(
    device: vkq.Device, kind: str, behind: str
) -> None:
    op, shape, w, options = KINDS[kind]
    data, feed = layer(op, shape, w, behind, "uint8", **options)
    (got,), (want,) = vkq.onnx.InferenceSession(data, device).run(None, feed), onnxruntime_results(data, feed)
    if behind:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=0.01)


@pytest.mark.parametrize("behind", ["", "quantize"])
def test_transposed_convolutions_do_not(device: vkq.Device, behind: str) -> None:
    """Sums of ConvTranspose do not wrap, because ONNX Runtime computes ConvTranspose in floats."""
    data, feed = layer("ConvTranspose", (1, 8, 3, 5), weight(8, 6, 4, 3), behind, "int8", strides=[2, 1])
    (got,), (want,) = vkq.onnx.InferenceSession(data, device).run(None, feed), onnxruntime_results(data, feed)
    if behind:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=0.01)
