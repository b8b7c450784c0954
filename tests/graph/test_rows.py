"""Tests of reductions, softmax and normalizations of floats as row functions: which nodes are fused, and
the results."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import vkq

from .test_chains import FLOAT, HALF, chains, compared, model, normal, op


@pytest.mark.parametrize(
    "kind", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp", "ReduceL2"]
)
def test_reductions(device: vkq.Device, kind: str) -> None:
    """Reductions along adjacent axes, separate axes and all axes are close to NumPy's, with and without the
    reduced axes in the result, also for float16."""
    x = normal(1, 3, 5, 7) / 4
    for axes, keep in (([1], 0), ([0, 2], 1), ([0, 1, 2], 0), ([-1], 1)):
        data = model([op(kind, "x axes", "y", keepdims=keep)], {"x": x}, {"y": FLOAT}, axes=np.array(axes))
        if kind in ("ReduceMean", "ReduceMax"):  # pools replace these, and sum in another order
            got = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})[0]
            wide = getattr(np, kind.removeprefix("Reduce").lower())(
                x.astype(float), tuple(axes), keepdims=bool(keep)
            )
            np.testing.assert_allclose(got, wide, rtol=1e-5, atol=1e-7)
        else:
            compared(device, data, {"x": x})
    half = x.astype(np.float16)
    data = model([op(kind, "x axes", "y")], {"x": half}, {"y": HALF}, axes=np.array([1]))
    if kind not in ("ReduceMean", "ReduceMax"):
        compared(device, data, {"x": half})


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
def test_softmax(device: vkq.Device, kind: str) -> None:
    """Softmax gives NumPy's bits along any axis. Along the last axis, one dispatch computes Softmax and the
    operators before and after it."""
    x = normal(2, 4, 9, 13)
    for axis in (-1, 1):
        nodes = [op("Mul", "x s", "a"), op(kind, "a", "b", axis=axis), op("Neg", "b", "y")]
        data = model(nodes, {"x": x}, {"y": FLOAT}, s=np.float32(0.125))
        assert chains(data, {"x": x}) == ([("rows",)] if axis < 0 else [("Mul",), ("rows",), ("Neg",)])
        compared(device, data, {"x": x})


def spelled_out(square: list[Any]) -> list[Any]:
    return [
        op("ReduceMean", "x axes", "m"), op("Sub", "x m", "d"), *square, op("ReduceMean", "q axes", "v"),
        op("Add", "v eps", "w"), op("Sqrt", "w", "r"), op("Div", "d r", "n"), op("Mul", "n scale", "p"),
        op("Add", "p bias", "y"),
    ]  # fmt: skip


@pytest.mark.parametrize("square", [[op("Mul", "d d", "q")], [op("Pow", "d two", "q")]], ids=["mul", "pow"])
def test_a_normalization_by_hand(device: vkq.Device, square: list[Any]) -> None:
    """A normalization that an exporter wrote as separate operators becomes one node, with the bits of
    LayerNormalization."""
    x, scale, bias = normal(3, 2, 7, 33), normal(4, 33), normal(5, 33)
    constants = {"axes": np.array([-1]), "eps": np.float32(1e-5), "scale": scale, "bias": bias}
    constants |= {"two": np.float32(2)} if square[0].op_type == "Pow" else {}
    data = model(spelled_out(square), {"x": x}, {"y": FLOAT}, **constants)
    assert chains(data, {"x": x}) == [("rows",)]
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})
    node = op("LayerNormalization", "x scale bias", "y", epsilon=1e-5)
    (want,) = compared(device, model([node], {"x": x}, {"y": FLOAT}, scale=scale, bias=bias), {"x": x})
    np.testing.assert_array_equal(got, want)
    wide = x.astype(float)
    apart = wide - wide.mean(-1, keepdims=True)
    real = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(got, real, rtol=0, atol=4e-6)


def test_normalizations(device: vkq.Device) -> None:
    """InstanceNormalization, and LayerNormalization from a middle axis on, give the bits of the NumPy
    steps."""
    x, s, b = normal(6, 2, 6, 5, 3), normal(7, 6), normal(8, 6)
    nodes = [op("InstanceNormalization", "x s b", "y")]
    compared(device, model(nodes, {"x": x}, {"y": FLOAT}, s=s, b=b), {"x": x})
    nodes = [op("LayerNormalization", "x w", "y", axis=2)]
    compared(device, model(nodes, {"x": x}, {"y": FLOAT}, w=normal(9, 5, 3)), {"x": x})
    assert TensorProto.FLOAT == FLOAT


@pytest.mark.parametrize("readers", [1, 2])
def test_quantized_results_are_dequantized_at_once(any_device: vkq.Device, readers: int) -> None:
    """If no other node reads the quantized result of a normalization, the dispatch of the normalization
    also dequantizes it and stores float32."""
    nodes = [
        op("LayerNormalization", "x scale bias", "n", axis=-1, epsilon=1e-5),
        op("QuantizeLinear", "n s z", "q"), op("DequantizeLinear", "q s z", "y"), op("Identity", "q", "w"),
    ][: 2 + readers]  # fmt: skip
    x, constants = normal(12, 3, 5, 24), {"scale": normal(13, 24), "bias": normal(14, 24)}
    constants |= {"s": np.float32(0.037), "z": np.uint8(121)}
    outputs = {"y": FLOAT, "w": TensorProto.UINT8} if readers > 1 else {"y": FLOAT}
    data = model(nodes, {"x": x}, outputs, **constants)
    found = [ops for ops in chains(data, {"x": x}) if ops != ("Identity",)]
    assert found == [("rows",), ("dequantize",)][:readers]
    compared(any_device, data, {"x": x})
