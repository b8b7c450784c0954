"""Tests of float16 graphs: their 8-bit values equal those of the float32 graph, and movements keep all
bits."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.onnx
from tests.onnx.networks import onnxruntime_results
from vkq.graph.passes import lower
from vkq.onnx.reader import read

from .test_chains import FLOAT, HALF, compared, model, normal, op

SCALES = {"sx": 0.0312, "sw": 0.0121, "sy": 0.0517}
X = (2, 3, 9, 7)


def quantized(dtype: Any, network: list[Any], **more: Any) -> Any:
    """Return a model of a convolution in QDQ form, followed by the nodes *network*. *dtype* (float32 or
    float16) is the type of x and of the scales."""
    random = np.random.default_rng(3)
    constants: dict[str, Any] = {name: np.asarray(np.float16(value), dtype) for name, value in SCALES.items()}
    constants |= {"zp": np.uint8(117), "w": random.integers(-128, 128, (5, 3, 3, 3)).astype(np.int8)}
    nodes = [
        op("QuantizeLinear", "x sx zp", "xq"), op("DequantizeLinear", "xq sx zp", "xd"),
        op("DequantizeLinear", "w sw", "wd"), op("Conv", "xd wd", "c", pads=[1, 1, 0, 2]), *network,
    ]  # fmt: skip
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = np.zeros(X, dtype)
    return model(nodes, {"x": x}, {"y": kind}, **constants, **more)


NETWORKS = {
    "conv": [op("QuantizeLinear", "c sy zp", "q"), op("DequantizeLinear", "q sy zp", "y")],
    "relu, max pool, mean": [
        op("Relu", "c", "r"), op("MaxPool", "r", "m", kernel_shape=[2, 3]),
        op("QuantizeLinear", "m sy zp", "q"), op("DequantizeLinear", "q sy zp", "d"),
        op("GlobalAveragePool", "d", "g"), op("QuantizeLinear", "g sy zp", "p"),
        op("DequantizeLinear", "p sy zp", "y"),
    ],
    "a sum of both": [
        op("Add", "c c", "a"), op("Mul", "a two", "b"), op("Reshape", "b flat", "f"),
        op("QuantizeLinear", "f sy zp", "q"), op("DequantizeLinear", "q sy zp", "y"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", list(NETWORKS))
def test_quantized(device: vkq.Device, name: str) -> None:
    """A float16 graph has the same quantized operators as the float32 graph, and the same 8-bit values."""
    x = normal(7, *X).astype(np.float16)
    ops, results = [], []
    for dtype in (np.float16, np.float32):
        more = {"two": np.asarray(0.25, dtype), "flat": np.array([2, -1])} if "both" in name else {}
        data = quantized(dtype, NETWORKS[name], **more)
        graph = lower(read(data).at({"x": X}))
        ops.append([node.op for node in graph.nodes if node.op not in ("chain", "Cast")])
        results.append(vkq.onnx.InferenceSession(data, device).run(None, {"x": x.astype(dtype)})[0])
    assert ops[0] == ops[1]
    np.testing.assert_array_equal(results[0], results[1].astype(np.float16))


def test_a_meeting_with_halves(device: vkq.Device) -> None:
    """A dequantized value is rounded to float16 if an operator with float16 operands reads it, or if it
    is a float16 result of the model."""
    x = normal(8, *X).astype(np.float16)
    nodes = [op("Add", "xd x", "a"), op("Identity", "c", "y2"), op("Cast", "xd", "s", to=TensorProto.FLOAT)]
    data = quantized(np.float16, [*nodes, op("Add", "a two", "y")], two=np.float16(2))
    proto = data
    for name, kind in (("y2", HALF), ("s", FLOAT)):
        proto.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    got = dict(zip("ycs", vkq.onnx.InferenceSession(proto, device).run(None, {"x": x}), strict=True))
    scale = np.float32(np.float16(SCALES["sx"]))
    real = (np.clip(np.rint(x.astype(np.float32) / scale) + 117, 0, 255) - 117).astype(np.float32) * scale
    np.testing.assert_array_equal(got["s"], real)
    np.testing.assert_array_equal(got["y"], real.astype(np.float16) + x + np.float16(2))
    assert got["c"].dtype == np.float16


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "MatMul"])
def test_layers_in_chains(device: vkq.Device, kind: str, groups: int) -> None:
    """Operators after a layer with float16 weights read its result rounded to float16, as the model's types
    say."""
    x = normal(1, 2, 4, 3, 11).astype(np.float16)
    shape = {"Conv": (4, 4 // groups, 1, 3), "ConvTranspose": (4, 4 // groups, 1, 3), "MatMul": (11, 5)}[kind]
    options = {} if kind == "MatMul" else {"group": groups}
    nodes = [op(kind, "x w", "c", **options), op("Reshape", "c flat", "r"), op("Neg", "r", "y")]
    w = normal(2, *shape).astype(np.float16) / 4
    data = model(nodes, {"x": x}, {"y": HALF}, w=w, flat=np.array([-1]))
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})
    (want,) = onnxruntime_results(data.SerializeToString(), {"x": x})
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2**-9, atol=2**-9)


MOVED = {
    "transpose": [op("Transpose", "x", "y", perm=[0, 2, 3, 1])],
    "slice": [op("Slice", "x starts ends axes steps", "y")],
    "odd slice": [op("Slice", "x one three axes one_", "y")],
    "expand": [op("Expand", "x wide", "y")],
    "tile": [op("Tile", "x wide4", "y")],
    "concat": [op("Concat", "x x", "y", axis=3)],
    "concat of pairs": [op("Concat", "x x x", "y", axis=1)],
    "pad": [op("Pad", "x pads", "y")],
    "gather": [op("Gather", "x ids", "y", axis=3)],
    "space": [op("DepthToSpace", "x", "y", blocksize=2)],
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", list(MOVED))
def test_movement(device: vkq.Device, name: str, dtype: str) -> None:
    """Operators that move float16 values keep every bit, also for odd numbers of elements."""
    x = normal(9, 1, 4, 3, 5).astype(dtype)
    constants = {
        "starts": np.array([4, 0]), "ends": np.array([-9, 3]), "axes": np.array([3, 1]),
        "steps": np.array([-2, 2]), "one": np.array([1, 1]), "three": np.array([4, 4]),
        "one_": np.array([1, 1]), "wide": np.array([3, 4, 3, 5]), "wide4": np.array([2, 1, 3, 1]),
        "pads": np.array([0, 0, 1, 0, 0, 0, 0, 1]), "ids": np.array([[4, 0, 3]]),
    }  # fmt: skip
    used = {n: v for n, v in constants.items() if any(n in node.input for node in MOVED[name])}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    data = model(MOVED[name], {"x": x}, {"y": kind}, **used)
    compared(device, data, {"x": x})
