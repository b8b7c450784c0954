"""Tests of Where, comparisons, ArgMax, ArgMin, and MatMulInteger with zero points per row or column,
compared with ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkq
import vkq.onnx
from tests.onnx.networks import onnxruntime_results
from tests.onnx.test_operators import TYPES, bytes_of, check, model, q
from vkq.onnx.fallback import FallbackWarning
from vkq.onnx.operators import MICROSOFT

SHAPE = (2, 5, 3, 4)
REAL = [
    helper.make_node("DequantizeLinear", ["a", "as", "az"], ["ra"]),
    helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["rb"]),
]


def flags(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 2, shape).astype(bool)


def operands(dtype: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return (inputs a and b, quantization parameters of a, b and y, all different)."""
    inputs = {"a": bytes_of(SHAPE, dtype), "b": bytes_of(SHAPE, dtype, 1)}
    return inputs, q("a", 0.03, 100, dtype) | q("b", 0.07, 140, dtype) | q("y", 0.1, 120, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_quantized_where(device: vkq.Device, dtype: str) -> None:
    """QLinearWhere selects 8-bit values; its condition is an input of the model, and may be broadcast."""
    inputs, constants = operands(dtype)
    names = ["c", "a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    node = helper.make_node("QLinearWhere", names, ["y"], domain=MICROSOFT)
    for shape in ((5, 1, 4), SHAPE):
        check(
            device,
            model([node], inputs | {"c": flags(shape)}, constants, dtype),
            inputs | {"c": flags(shape)},
        )
    feed = inputs | {"c": flags(SHAPE)}
    session = vkq.onnx.InferenceSession(model([node], feed, constants, dtype), device)
    one, other = (session.run(None, feed | {"c": c})[0] for c in (feed["c"], ~feed["c"]))
    assert len(session._executables.kept) == 1
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("dtype", [*TYPES, "float32", "int32"])
def test_where(any_device: vkq.Device, dtype: str) -> None:
    x, z = (bytes_of(SHAPE, "int8", seed).astype(dtype) for seed in (0, 1))
    feed = {"c": flags(SHAPE), "x": x, "z": z}
    if dtype == "int32":  # with int32, the model has no input z
        feed.pop("z")
    constants = {} if "z" in feed else {"z": z}
    node = helper.make_node("Where", ["c", "x", "z"], ["y"])
    check(any_device, model([node], feed, constants, dtype), feed)


@pytest.mark.parametrize("dtype", TYPES)
def test_where_by_a_comparison(device: vkq.Device, dtype: str) -> None:
    """A Where of floats has the condition not (a > b), with and without a QuantizeLinear after it. The
    condition may also be an output of the model."""
    inputs, constants = operands(dtype)
    nodes = [*REAL, helper.make_node("Greater", ["ra", "rb"], ["c"]), helper.make_node("Not", ["c"], ["n"])]
    chosen = helper.make_node("Where", ["n", "ra", "rb"], ["r"])
    check(
        device, model([*nodes[:3], helper.make_node("Not", ["c"], ["y"])], inputs, constants, "bool"), inputs
    )
    real = [*nodes, helper.make_node("Where", ["n", "ra", "rb"], ["y"])]
    check(device, model(real, inputs, constants, "float32"), inputs)
    stored = helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["y"])
    check(device, model([*nodes, chosen, stored], inputs, constants, dtype), inputs)


def test_flags_by_flags(any_device: vkq.Device) -> None:
    a, b = flags((3, 4)), flags((4,))
    for op in ("And", "Or", "Xor"):
        node = helper.make_node(op, ["a", "b"], ["y"])
        check(any_device, model([node], {"a": a, "b": b}, {}, "bool"), {"a": a, "b": b})


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", TYPES)
def test_places(device: vkq.Device, dtype: str, op: str) -> None:
    """ArgMax and ArgMin return int64 indices, as at the end of a segmentation network. Of several equal
    scores they choose the first, or the last with select_last_index."""
    x = bytes_of((2, 21, 5, 3), dtype) // 8
    constants = q("a", 0.03, 100, dtype)
    for options in ({"axis": 1, "keepdims": 0}, {"axis": -1, "select_last_index": 1}):
        nodes = [REAL[0], helper.make_node(op, ["ra"], ["y"], **options)]
        check(device, model(nodes, {"a": x}, constants, "int64"), {"a": x})


@pytest.mark.parametrize("between", ["quantized", "bytes"])
def test_rows_and_columns_of_the_largest(device: vkq.Device, between: str) -> None:
    """An index in a map of 4 x 7 pixels becomes a row and a column, as pose networks compute it: in int64,
    which int32 replaces because the index is less than 28."""
    x = bytes_of((2, 3, 28), "uint8")
    nodes = [
        helper.make_node("ArgMax", ["ra" if between == "quantized" else "a"], ["i"], axis=2, keepdims=0),
        helper.make_node("Div", ["i", "width"], ["row"]), helper.make_node("Mod", ["i", "width"], ["column"]),
        helper.make_node("Mul", ["row", "ten"], ["tens"]), helper.make_node("Add", ["tens", "column"], ["y"]),
    ]  # fmt: skip
    more = q("a", 0.03, 100, "uint8") if between == "quantized" else {}
    constants = more | {"width": np.array(7), "ten": np.array(10)}
    check(device, model(REAL[: len(more) and 1] + nodes, {"a": x}, constants, "int64"), {"a": x})


@pytest.mark.parametrize("dtype", TYPES)
def test_integer_product_by_columns(device: vkq.Device, dtype: str) -> None:
    """MatMulInteger with a zero point for each column, some of them equal, gives ONNX Runtime's sums."""
    a, rng = bytes_of((2, 5, 19), dtype), np.random.default_rng(0)
    constants = {
        "az": np.array(3, dtype), "b": rng.integers(0, 256, (19, 7)).astype(np.uint8),
        "bz": np.array([0, 255, 128, 0, 7, 128, 1], np.uint8),
    }  # fmt: skip
    node = helper.make_node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])
    check(device, model([node], {"a": a}, constants, "int32"), {"a": a})


def test_integer_product_by_rows(device: vkq.Device) -> None:
    """MatMulInteger with a zero point for each row gives the right sums. ONNX allows this; ONNX Runtime
    does not support it."""
    a, b = bytes_of((5, 19), "uint8"), bytes_of((19, 7), "int8", 1)
    az, bz = np.array([0, 255, 4, 255, 9], np.uint8), np.array([3, -128, 127, 3, 0, 0, 5], np.int8)
    node = helper.make_node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])
    data = model([node], {"a": a, "b": b}, {"az": az, "bz": bz}, "int32")
    want = (a.astype(np.int32) - az.astype(np.int32)[:, None]) @ (b.astype(np.int32) - bz.astype(np.int32))
    np.testing.assert_array_equal(
        vkq.onnx.InferenceSession(data, device).run(None, {"a": a, "b": b})[0], want
    )


def test_flags_of_both(any_device: vkq.Device) -> None:
    """Comparisons of quantized values, and of floats that a CPU node computes, give ONNX Runtime's flags."""
    inputs, constants = operands("uint8")
    feed = inputs | {"x": np.random.default_rng(0).normal(0, 1, SHAPE).astype(np.float32)}
    nodes = [
        *REAL, helper.make_node("Greater", ["ra", "rb"], ["c"]),
        helper.make_node("SampleOp", ["x"], ["s"], domain=MICROSOFT),
        helper.make_node("Less", ["s", "x"], ["d"]), helper.make_node("And", ["c", "d"], ["y"]),
    ]  # fmt: skip
    data = model(nodes, feed, constants, "bool")
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with pytest.warns(FallbackWarning, match=r"1 of \d+ nodes .*\(SampleOp\)"):
        got = session.run(None, feed)[0]
    np.testing.assert_array_equal(got, onnxruntime_results(data, feed)[0])
