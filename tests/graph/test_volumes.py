"""Tests of operators on volumes (3-D), which run as operators on images: float results equal NumPy's bit
for bit and are close to ONNX Runtime's; int8 results are ONNX Runtime's bytes."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import vkq
import vkq.onnx
from tests.onnx.test_operators import bytes_of, check, q
from tests.onnx.test_operators import model as quantized_model
from vkq.graph.passes import lower
from vkq.onnx.reader import read

from .test_chains import FLOAT, model, normal, op

X = normal(0, 2, 6, 5, 7, 6)  # adjacent axes have different sizes
# (attributes, weight shape): strides, dilations, and padding that differs for each axis and side
CONVOLUTIONS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "plain": ({}, (4, 6, 3, 3, 3)),
    "everything": (
        {"pads": [1, 0, 2, 2, 1, 0], "strides": [2, 1, 3], "dilations": [1, 2, 1]},
        (5, 6, 3, 2, 3),
    ),
    "one slice": ({"pads": [0, 1, 1, 0, 1, 1], "strides": [3, 2, 1]}, (3, 6, 1, 3, 3)),
    "groups": ({"group": 3, "auto_pad": "SAME_LOWER", "strides": [1, 2, 2]}, (9, 2, 4, 3, 1)),
    "depthwise": ({"group": 6, "auto_pad": "SAME_UPPER", "strides": [2, 1, 1]}, (6, 1, 3, 3, 3)),
    "far apart": ({"dilations": [3, 1, 1], "pads": [5, 0, 0, 4, 0, 0]}, (2, 6, 2, 1, 1)),
}
TRANSPOSED: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "plain": ({}, (6, 4, 3, 2, 3)),
    "everything": (
        {
            "pads": [1, 0, 2, 0, 1, 0],
            "strides": [3, 1, 2],
            "output_padding": [2, 0, 1],
            "dilations": [2, 1, 1],
        },
        (6, 5, 3, 2, 3),
    ),
    "wider than the kernel": ({"strides": [4, 2, 2]}, (6, 2, 2, 1, 2)),
    "groups": ({"group": 2, "strides": [2, 1, 1], "pads": [1, 1, 0, 1, 0, 0]}, (6, 3, 3, 3, 1)),
}
POOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "MaxPool": ("MaxPool", {"kernel_shape": [2, 3, 2], "pads": [1, 1, 0, 0, 1, 1], "strides": [2, 1, 3]}),
    "MaxPool, ceil": ("MaxPool", {"kernel_shape": [3, 2, 2], "strides": [2, 2, 2], "ceil_mode": 1}),
    "MaxPool, dilated": ("MaxPool", {"kernel_shape": [2, 2, 2], "dilations": [3, 2, 1]}),
    "AveragePool": (
        "AveragePool", {"kernel_shape": [3, 2, 2], "pads": [1, 1, 0, 1, 0, 1], "strides": [2, 1, 2]},
    ),
    "AveragePool, padding": (
        "AveragePool", {"kernel_shape": [3, 2, 2], "pads": [1, 1, 0, 1, 0, 1], "count_include_pad": 1},
    ),
    "AveragePool, ceil": ("AveragePool", {"kernel_shape": [2, 3, 2], "strides": [2, 2, 2], "ceil_mode": 1}),
    "GlobalMaxPool": ("GlobalMaxPool", {}), "GlobalAveragePool": ("GlobalAveragePool", {}),
}  # fmt: skip


def weighted(kind: str, name: str) -> tuple[dict[str, Any], tuple[int, ...]]:
    return (CONVOLUTIONS if kind == "Conv" else TRANSPOSED)[name]


WEIGHTED = [("Conv", name) for name in CONVOLUTIONS] + [("ConvTranspose", name) for name in TRANSPOSED]


@pytest.mark.parametrize(("kind", "name"), WEIGHTED)
def test_float_convolutions(device: vkq.Device, kind: str, name: str) -> None:
    attributes, shape = weighted(kind, name)
    outputs = shape[0] if kind == "Conv" else shape[1] * attributes.get("group", 1)
    constants = {"w": normal(1, *shape) / 8, "b": normal(2, outputs)}
    data = model([op(kind, "x w b", "y", **attributes)], {"x": X}, {"y": FLOAT}, **constants)
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": X})
    (want,) = ort.InferenceSession(data.SerializeToString()).run(None, {"x": X})
    sizes = {name: np.abs(v) for name, v in constants.items()}
    other = model([op(kind, "x w b", "y", **attributes)], {"x": X}, {"y": FLOAT}, **sizes)
    (most,) = ort.InferenceSession(other.SerializeToString()).run(None, {"x": np.abs(X)})
    terms = int(np.prod(shape)) // outputs * (1 if kind == "Conv" else attributes.get("group", 1)) + 1
    assert got.shape == want.shape
    assert np.all(np.abs(got - want) <= (terms + 4) * 2.0**-23 * most)


@pytest.mark.parametrize("name", POOLS)
def test_float_pools(device: vkq.Device, name: str) -> None:
    kind, attributes = POOLS[name]
    data = model([op(kind, "x", "y", **attributes)], {"x": X}, {"y": FLOAT})
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": X})
    (want,) = ort.InferenceSession(data.SerializeToString()).run(None, {"x": X})
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=0, atol=0 if "Max" in name else 2e-6)


def test_around_them(device: vkq.Device) -> None:
    """One model of volumes runs a convolution without a bias, BatchNormalization, Relu, Resize and
    InstanceNormalization."""
    scales = [np.abs(normal(i, 4)) + 0.5 for i in range(4)]
    nodes = [
        op("Conv", "x w", "a", pads=[1] * 6), op("BatchNormalization", "a s0 s1 s2 s3", "b"),
        op("Relu", "b", "c"), op("Resize", "c none scales", "d", mode="nearest"),
        op("InstanceNormalization", "d s0 s1", "y"),
    ]  # fmt: skip
    constants = {f"s{i}": v for i, v in enumerate(scales)} | {"w": normal(9, 4, 3, 3, 3, 3) / 4}
    constants |= {"scales": np.float32([1, 1, 2, 1, 3]), "none": np.float32([])}
    data = model(nodes, {"x": X[:, :3]}, {"y": FLOAT}, **constants)
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": X[:, :3]})
    (want,) = ort.InferenceSession(data.SerializeToString()).run(None, {"x": X[:, :3]})
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def linear(*nodes: Any, per_channel: bool = False, **attributes: Any) -> list[Any]:
    """Return *nodes* between DequantizeLinear of x, w and b and QuantizeLinear of y."""
    axes = [{"axis": axis} if per_channel else {} for axis in (attributes["axis"], 0)]
    return [
        op("DequantizeLinear", "x xs xz", "dx"), op("DequantizeLinear", "w ws wz", "dw", **axes[0]),
        op("DequantizeLinear", "b bs bz", "db", **axes[1]), *nodes, op("QuantizeLinear", "r ys yz", "y"),
    ]  # fmt: skip


@pytest.mark.parametrize("per_channel", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize(("kind", "name"), WEIGHTED)
def test_int8_convolutions(device: vkq.Device, kind: str, name: str, per_channel: bool) -> None:
    """A 3-D convolution in QDQ form becomes one int8 layer on images, between movements of 8-bit values.
    Integer sums are exact."""
    attributes, shape = weighted(kind, name)
    group = attributes.get("group", 1)
    per_channel = per_channel and (kind == "Conv" or group == 1)  # with groups, w has no axis of all channels
    outputs, axis = (shape[0], 0) if kind == "Conv" else (shape[1] * group, 1)
    rng = np.random.default_rng(3)
    x = bytes_of(X.shape, "int8")
    scales = rng.uniform(0.005, 0.02, outputs).astype(np.float32) if per_channel else np.float32(0.01)
    constants = q("x", 0.04, 100, "int8") | q("y", 0.3, 120, "int8") | {
        "w": rng.integers(-127, 128, shape).astype(np.int8), "ws": scales,
        "wz": np.zeros(scales.shape, np.int8), "b": rng.integers(-3000, 3000, outputs).astype(np.int32),
        "bs": np.float32(0.04) * scales, "bz": np.zeros(scales.shape, np.int32),
    }  # fmt: skip
    nodes = linear(op(kind, "dx dw db", "r", **attributes), per_channel=per_channel, axis=axis)
    data = quantized_model(nodes, {"x": x}, constants, "int8")
    ops = [node.op for node in lower(read(data).at({"x": x.shape})).nodes]
    assert sum("conv" in one for one in ops) == 1
    assert not any(one in ("Conv", "ConvTranspose", "quantize", "dequantize") for one in ops), ops
    session = vkq.onnx.InferenceSession(data, device)
    (got,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(got, exact(kind, x, constants, attributes))
    if kind == "Conv":
        check(device, data, {"x": x})


def exact(kind: str, x: Any, c: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """Return ONNX Runtime's float32 sums of integers below 2^24, which are exact, requantized to int8."""
    feed = {"x": x.astype(np.float32) - np.float32(c["xz"])}
    weights = {name: c[name].astype(np.float32) for name in "wb"}
    data = model([op(kind, "x w b", "y", **attributes)], feed, {"y": FLOAT}, **weights)
    (acc,) = ort.InferenceSession(data.SerializeToString()).run(None, feed)
    scale = (np.float32(0.04) * np.reshape(c["ws"], (-1, 1, 1, 1))) / c["ys"]
    value = np.rint(acc * scale.astype(np.float32)) + float(c["yz"])
    return np.clip(value, -128, 127).astype(np.int8)


@pytest.mark.parametrize("name", [name for name in POOLS if "Max" in name])
def test_int8_maxima(device: vkq.Device, name: str) -> None:
    kind, attributes = POOLS[name]
    x = bytes_of(X.shape, "uint8")
    nodes = [op("DequantizeLinear", "x xs xz", "a"), op(kind, "a", "b", **attributes),
             op("QuantizeLinear", "b xs xz", "y")]  # fmt: skip
    data = quantized_model(nodes, {"x": x}, q("x", 0.04, 100, "uint8"), "uint8")
    ops = {node.op for node in lower(read(data).at({"x": x.shape})).nodes}
    assert ops - {"Identity"} == {"MaxPool", "Reshape"}
    check(device, data, {"x": x})
