"""Tests of single operators in every form that the reader knows, compared with ONNX Runtime:
com.microsoft's quantized operators, element-wise functions between DequantizeLinear and QuantizeLinear, and
forms of older opsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state

import vkq
import vkq.onnx
from vkq.graph.operators.elementwise import ROUNDED, STEPPED
from vkq.onnx.cpu import cpu_session
from vkq.onnx.fallback import FallbackWarning
from vkq.onnx.operators import MICROSOFT, RULES

TYPES = ["int8", "uint8"]


def model(
    nodes: Sequence[Any],
    inputs: dict[str, np.ndarray],
    constants: dict[str, Any],
    result: str,
    opset: int = 17,
) -> bytes:
    """Return a model with one result "y"."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(result))
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(
        list(nodes), "g", infos, [helper.make_tensor_value_info("y", kind, None)], stored
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def check(device: vkq.Device, data: bytes, inputs: dict[str, np.ndarray]) -> None:
    """Check that the result has the bytes of ONNX Runtime's."""
    want = cpu_session(data, "comparing").run(None, inputs)[0]
    got = vkq.onnx.InferenceSession(data, device).run(None, inputs)[0]
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)


def bytes_of(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8).view(dtype)


def q(name: str, scale: float, zero: int, dtype: str) -> dict[str, Any]:
    """Return the constants of a scale and a zero point. *zero* counts from the type's minimum."""
    return {f"{name}s": np.float32(scale), f"{name}z": np.array(zero + np.iinfo(dtype).min, dtype)}


UNARY: dict[str, dict[str, Any]] = {
    "QLinearLeakyRelu": {"alpha": 0.2},
    "QLinearSigmoid": {},
    "QLinearSoftmax": {"axis": 1, "opset": 13},
    "QLinearAveragePool": {"kernel_shape": [2, 3], "pads": [0, 1, 1, 1], "strides": [2, 1]},
    "QLinearGlobalAveragePool": {},
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", UNARY)
def test_quantized_unary(device: vkq.Device, op: str, dtype: str) -> None:
    x = bytes_of((2, 5, 6, 7), dtype)
    out = 1 / 256 if op in ("QLinearSoftmax", "QLinearSigmoid") else 0.05
    constants = q("x", 0.04, 100, dtype) | q("y", out, 0 if out < 0.01 else 90, dtype)
    node = helper.make_node(op, ["x", "xs", "xz", "ys", "yz"], ["y"], domain=MICROSOFT, **UNARY[op])
    check(device, model([node], {"x": x}, constants, dtype), {"x": x})


@pytest.mark.parametrize("opset", [11, 13])
def test_quantized_softmax_of_older_opsets(device: vkq.Device, opset: int) -> None:
    """QLinearSoftmax with an opset before 13 treats all axes from *axis* on as one axis."""
    x = bytes_of((3, 4, 5), "uint8")
    constants = q("x", 0.02, 100, "uint8") | q("y", 1 / 256, 0, "uint8")
    inputs = ["x", "xs", "xz", "ys", "yz"]
    node = helper.make_node("QLinearSoftmax", inputs, ["y"], domain=MICROSOFT, axis=1, opset=opset)
    check(device, model([node], {"x": x}, constants, "uint8"), {"x": x})


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_quantized_binary(device: vkq.Device, op: str, dtype: str) -> None:
    a, b = bytes_of((2, 5, 3, 4), dtype), bytes_of((1, 5, 1, 1), dtype, 1)
    constants = q("a", 0.03, 100, dtype) | q("b", 0.07, 140, dtype) | q("y", 0.1, 120, dtype)
    node = helper.make_node(op, ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"], domain=MICROSOFT)
    check(device, model([node], {"a": a, "b": b}, constants, dtype), {"a": a, "b": b})
    constants["b"] = b
    check(device, model([node], {"a": a}, constants, dtype), {"a": a})


@pytest.mark.parametrize("dtype", TYPES)
def test_quantized_concat_and_where(device: vkq.Device, dtype: str) -> None:
    a, b = bytes_of((2, 5, 3, 4), dtype), bytes_of((2, 3, 3, 4), dtype, 1)
    constants = q("a", 0.03, 100, dtype) | q("b", 0.07, 140, dtype) | q("y", 0.1, 120, dtype)
    inputs = ["ys", "yz", "a", "as", "az", "b", "bs", "bz"]
    node = helper.make_node("QLinearConcat", inputs, ["y"], domain=MICROSOFT, axis=1)
    check(device, model([node], {"a": a, "b": b}, constants, dtype), {"a": a, "b": b})
    a, b = a[:, :3], b
    constants["c"] = np.random.default_rng(2).integers(0, 2, (3, 3, 4)).astype(bool)
    inputs = ["c", "a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    node = helper.make_node("QLinearWhere", inputs, ["y"], domain=MICROSOFT)
    check(device, model([node], {"a": a, "b": b}, constants, dtype), {"a": a, "b": b})


@pytest.mark.parametrize("real", [False, True], ids=["int8", "float32"])
@pytest.mark.parametrize("dtype", TYPES)
def test_qgemm(device: vkq.Device, dtype: str, real: bool) -> None:
    a, rng = bytes_of((5, 19), dtype), np.random.default_rng(0)
    scales = rng.uniform(0.001, 0.01, 7).astype(np.float32)
    constants = q("a", 0.03, 100, dtype) | q("y", 0.1, 120, dtype) | {
        "b": rng.integers(-127, 128, (7, 19)).astype(np.int8), "bs": scales, "bz": np.zeros(7, np.int8),
        "c": rng.integers(-1000, 1000, 7).astype(np.int32),
    }  # fmt: skip
    inputs = ["a", "as", "az", "b", "bs", "bz", "c", *([] if real else ["ys", "yz"])]
    node = helper.make_node("QGemm", inputs, ["y"], domain=MICROSOFT, transB=1, alpha=1.0)
    check(device, model([node], {"a": a}, constants, "float32" if real else dtype), {"a": a})


SETTINGS: dict[str, dict[str, Any]] = {
    "LeakyRelu": {"alpha": 0.3}, "Elu": {"alpha": 0.7}, "ThresholdedRelu": {"alpha": 0.5},
}  # fmt: skip
OF_FLOATS = [op for op in (*ROUNDED, *STEPPED) if op not in ("QuickGelu", "BitwiseNot")]


@pytest.mark.parametrize("op", OF_FLOATS)
def test_functions(any_device: vkq.Device, op: str) -> None:
    """Float functions between DequantizeLinear and QuantizeLinear become tables of 256 entries, and give
    ONNX Runtime's bytes."""
    for dtype in TYPES:
        x = np.arange(256).astype(np.uint8).view(dtype).reshape(4, 64)
        constants = q("x", 0.037, 117, dtype) | q("y", 0.011, 120, dtype)
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
            helper.make_node(op, ["a"], ["b"], **SETTINGS.get(op, {})),
            helper.make_node("QuantizeLinear", ["b", "ys", "yz"], ["y"]),
        ]
        opset = max(17, onnx.defs.get_schema(op).since_version)
        check(any_device, model(nodes, {"x": x}, constants, dtype, opset), {"x": x})


def test_hard_swish_multiplies_by_a_sixth(device: vkq.Device) -> None:
    """HardSwish multiplies by 1/6, as ONNX defines, and gives ONNX Runtime's bytes. A division by 6 would
    round -45 * 0.02 to the other side of a tie, and would change one float32 result in seven."""
    x = np.arange(256).astype(np.uint8)
    constants = q("x", 0.02, 128, "uint8") | q("y", 0.03, 20, "uint8")
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node("HardSwish", ["a"], ["b"]),
        helper.make_node("QuantizeLinear", ["b", "ys", "yz"], ["y"]),
    ]
    check(device, model(nodes, {"x": x}, constants, "uint8"), {"x": x})
    feed = {"r": np.linspace(-4, 4, 2001, dtype=np.float32)}
    check(device, model([helper.make_node("HardSwish", ["r"], ["y"])], feed, {}, "float32"), feed)


@pytest.mark.parametrize("op", ["Sub", "Div", "Max", "Min"])
def test_functions_of_two(device: vkq.Device, op: str) -> None:
    a, b = bytes_of((2, 3, 16, 16), "uint8"), bytes_of((2, 3, 16, 16), "uint8", 1)
    constants = q("a", 0.03, 100, "uint8") | q("b", 0.07, 300 - 256, "uint8") | q("y", 0.1, 120, "uint8")
    nodes = [
        helper.make_node("DequantizeLinear", ["a", "as", "az"], ["ra"]),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["rb"]),
        helper.make_node(op, ["ra", "rb"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["y"]),
    ]
    check(device, model(nodes, {"a": a, "b": b}, constants, "uint8"), {"a": a, "b": b})


def test_square(any_device: vkq.Device) -> None:
    """A square becomes a table of the float function, and gives ONNX Runtime's bytes. The integer product
    of a value with itself may round differently."""
    x = np.arange(256).astype(np.uint8)
    constants = q("x", 0.0371, 117, "uint8") | q("y", 0.0113, 3, "uint8") | {"two": np.float32(2)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node("Pow", ["a", "two"], ["b"]),
        helper.make_node("QuantizeLinear", ["b", "ys", "yz"], ["y"]),
    ]
    check(any_device, model(nodes, {"x": x}, constants, "uint8"), {"x": x})
    nodes[1:] = [helper.make_node("Pow", ["a", "two"], ["y"])]
    check(any_device, model(nodes, {"x": x}, constants, "float32"), {"x": x})
    nodes[1:] = [helper.make_node("Pow", ["r", "two"], ["y"])]
    feed = {"r": np.random.default_rng(0).normal(0, 2, (3, 5)).astype(np.float32)}
    check(any_device, model(nodes[1:], feed, constants, "float32"), feed)


def around(node: Any, more: Sequence[Any] = ()) -> list[Any]:
    """Return four parts of a graph in order: DequantizeLinear with the result "a", the nodes *more*,
    *node* (which reads "a" and computes "b"), and QuantizeLinear of "b" with the scale and zero point of
    x."""
    return [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        *more,
        node,
        helper.make_node("QuantizeLinear", ["b", "xs", "xz"], ["y"]),
    ]


OLD = {
    "clip with attributes": (helper.make_node("Clip", ["a"], ["b"], min=-1.0, max=2.0), 10),
    "squeeze with attributes": (helper.make_node("Squeeze", ["a"], ["b"], axes=[0]), 11),
    "unsqueeze with attributes": (helper.make_node("Unsqueeze", ["a"], ["b"], axes=[0, -1]), 12),
    "pad with attributes": (
        helper.make_node("Pad", ["a"], ["b"], pads=[0, 0, 1, 2, 0, 0, 0, 1], value=0.0),
        10,
    ),
    "mean with attributes": (helper.make_node("ReduceMean", ["a"], ["b"], axes=[2, 3]), 13),
    "resize of opset 10": (helper.make_node("Resize", ["a", "scales"], ["b"], mode="nearest"), 10),
    "dropout of opset 10": (helper.make_node("Dropout", ["a"], ["b"], ratio=0.5), 10),
    "depth to space": (helper.make_node("DepthToSpace", ["a"], ["b"], blocksize=2, mode="CRD"), 13),
}


@pytest.mark.parametrize("form", OLD)
def test_older_opsets(any_device: vkq.Device, form: str) -> None:
    node, opset = OLD[form]
    x = bytes_of((1, 8, 6, 5), "uint8")
    constants = q("x", 0.05, 100, "uint8") | {"scales": np.array([1, 1, 2, 3], np.float32)}
    check(any_device, model(around(node), {"x": x}, constants, "uint8", opset), {"x": x})


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_a_margin_that_repeats_needs_no_value(any_device: vkq.Device, mode: str) -> None:
    """Pad in the modes "edge" and "reflect" ignores the fill value, which need not be an 8-bit value."""
    x = bytes_of((1, 3, 4, 5), "uint8")
    node = helper.make_node("Pad", ["a", "pads", "value"], ["b"], mode=mode)
    more = {"pads": np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64), "value": np.float32(0.37)}
    constants = q("x", 0.05, 100, "uint8") | more
    check(any_device, model(around(node), {"x": x}, constants, "uint8"), {"x": x})


@pytest.mark.parametrize("include", [0, 1])
def test_dilated_means(device: vkq.Device, include: int) -> None:
    """Dilated average pools give ONNX Runtime's bytes. ONNX Runtime runs without optimizations, because
    with them it would use QLinearAveragePool, which ignores dilations."""
    x = bytes_of((1, 2, 7, 8), "int8")
    window = {"kernel_shape": [2, 3], "dilations": [2, 1], "pads": [1, 0, 1, 1]}
    node = helper.make_node("AveragePool", ["a"], ["b"], **window, count_include_pad=include)
    data = model(around(node), {"x": x}, q("x", 0.1, 3, "int8"), "int8", 19)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (want,) = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_array_equal(vkq.onnx.InferenceSession(data, device).run(None, {"x": x})[0], want)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_that_stays_float32(device: vkq.Device, axis: int) -> None:
    """Softmax with a float32 result, as at the end of a segmentation network, is near ONNX Runtime's
    along any axis."""
    x = bytes_of((3, 4, 5), "int8")
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=axis),
    ]
    data = model(nodes, {"x": x}, q("x", 0.05, 3, "int8"), "float32")
    (want,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


MIXED = [("int8", "uint8"), ("uint8", "int8")]


@pytest.mark.parametrize(("given", "result"), MIXED)
def test_products_of_activations_of_another_type(device: vkq.Device, given: str, result: str) -> None:
    x = bytes_of((5, 6), given)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["y"]),
    ]
    constants = q("x", 0.05, 3, given) | q("y", 0.7, 100, result)
    check(device, model(nodes, {"x": x}, constants, result), {"x": x})


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMul", "Softmax", "GlobalAveragePool"])
@pytest.mark.parametrize(("given", "result"), MIXED)
def test_results_of_another_type(device: vkq.Device, op: str, given: str, result: str) -> None:
    """Operators may have unsigned results for signed inputs and the reverse, as quantization-aware
    training writes after a Relu. ONNX Runtime computes such operators in floats."""
    x = bytes_of((5, 6) if op in ("Gemm", "MatMul", "Softmax") else (1, 6, 5, 4), given)
    shapes = {"Conv": (3, 6, 2, 2), "ConvTranspose": (6, 3, 2, 2), "Gemm": (6, 3), "MatMul": (6, 3)}
    weighted = ["w"] if op in shapes else []
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node(op, ["a", *weighted], ["b"]),
        helper.make_node("QuantizeLinear", ["b", "ys", "yz"], ["y"]),
    ]
    constants = q("x", 0.05, 3, given) | q("y", 0.01 if op == "Softmax" else 0.07, 100, result)
    if weighted:
        nodes.insert(1, helper.make_node("DequantizeLinear", ["v", "ws", "wz"], ["w"]))
        constants |= q("w", 0.02, 0, "int8") | {"v": bytes_of(shapes[op], "int8")}
    check(device, model(nodes, {"x": x}, constants, result), {"x": x})


def test_refusals_name_their_node_once(any_device: vkq.Device) -> None:
    x = bytes_of((1, 3, 4, 5), "uint8")
    node = helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[9, 9])
    with pytest.raises(vkq.ModelError, match="the kernel spans 9 but H with padding is 4") as caught:
        vkq.onnx.InferenceSession(
            model(around(node), {"x": x}, q("x", 0.05, 100, "uint8"), "uint8"), any_device
        )
    assert str(caught.value).count("MaxPool '") == 1


def test_split_of_opset_11(any_device: vkq.Device) -> None:
    x = bytes_of((1, 8, 6, 5), "uint8")
    split = helper.make_node("Split", ["a"], ["a0", "a1"], axis=1, split=[3, 5])
    both = helper.make_node("Concat", ["a1", "a0"], ["b"], axis=1)
    data = model(around(both, [split]), {"x": x}, q("x", 0.05, 100, "uint8"), "uint8", 11)
    check(any_device, data, {"x": x})


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_part_without_elements(any_device: vkq.Device, dtype: str) -> None:
    """Concat gives ONNX Runtime's result if one operand has no elements."""
    x = bytes_of((2, 3), dtype) if dtype == "uint8" else np.ones((2, 3), np.float32)
    split = helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=1)
    both = helper.make_node("Concat", ["b", "a"], ["y"], axis=1)
    data = model([split, both], {"x": x}, {"sizes": np.array([0, 3])}, dtype)
    check(any_device, data, {"x": x})


def test_shapes_computed_by_the_model(any_device: vkq.Device) -> None:
    """A Reshape to a shape that the model computes (Shape, Gather, Unsqueeze, Concat), as exporters write,
    gives ONNX Runtime's result."""
    x = bytes_of((2, 8, 6, 5), "uint8")
    more = [
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["wanted"], axis=0),
    ]
    constants = q("x", 0.05, 100, "uint8") | {
        "zero": np.array(0, np.int64), "axes": np.array([0], np.int64), "rest": np.array([4, -1], np.int64),
    }  # fmt: skip
    node = helper.make_node("Reshape", ["a", "wanted"], ["b"])
    check(any_device, model(around(node, more), {"x": x}, constants, "uint8"), {"x": x})


def test_every_rule_is_an_operator_that_onnx_runtime_knows() -> None:
    """ONNX Runtime knows every operator that has a rule, so no name is misspelt."""
    known = {(schema.domain, schema.name) for schema in onnxruntime_pybind11_state.get_all_operator_schema()}
    assert set(RULES) <= known


@pytest.mark.parametrize("number", [-0.02, 0.0, 1e-40])
@pytest.mark.parametrize("which", ["ys"])
def test_what_is_no_scale_goes_to_the_fallback(any_device: vkq.Device, which: str, number: float) -> None:
    """A node with a scale that vkq does not accept runs in the fallback, because ONNX allows any scale."""
    x = bytes_of((3, 8), "uint8")
    constants = q("x", 0.03, 100, "uint8") | q("y", 0.1, 120, "uint8") | {
        "w": bytes_of((8, 4), "int8", 1), "ws": np.array([0.01, 0.02, 0.03, 0.04], np.float32),
    }  # fmt: skip
    constants[which] = np.float32(number) if which != "ws" else np.array([0.01, number, 1, 2], np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["b"], axis=1),
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["y"]),
    ]
    data = model(nodes, {"x": x}, constants, "uint8")
    with pytest.raises(vkq.UnsupportedModelError, match="cannot run on a device"):
        vkq.onnx.InferenceSession(data, any_device)
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with pytest.warns(FallbackWarning):
        assert session.run(None, {"x": x})[0].shape == (3, 4)
