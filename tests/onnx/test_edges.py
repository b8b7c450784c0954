"""Tests of attributes at the limits of ONNX's rules, where shapes or the last bit are easily wrong,
compared with ONNX Runtime."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import vkq
import vkq.onnx
from vkq.onnx.cpu import cpu_session
from vkq.onnx.fallback import FallbackWarning

from .networks import onnxruntime_results
from .test_operators import MICROSOFT, around, bytes_of, check, model, q


def many(nodes: list[Any], constants: dict[str, Any], x: np.ndarray, results: list[str]) -> bytes:
    """Return a model with several results, which have the type of x."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    info = helper.make_tensor_value_info
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    made = [info(name, kind, None) for name in results]
    graph = helper.make_graph(nodes, "g", [info("x", kind, x.shape)], made, stored)
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def all_equal(device: vkq.Device, data: bytes, x: np.ndarray) -> None:
    """Check that every result equals ONNX Runtime's."""
    got = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})
    for number, (a, b) in enumerate(zip(got, ort.InferenceSession(data).run(None, {"x": x}), strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"result {number}")


FAR = 2**31 - 1, 2**63 - 1, -(2**63)


def test_slices_that_begin_and_end_outside(any_device: vkq.Device) -> None:
    """Slice gives ONNX Runtime's results for starts and ends outside the data: with a negative step, a
    start before the data is clamped to the first element, and an end of the largest int32 or int64 means that
    the first element is included."""
    x, nodes, constants = np.arange(1, 6, dtype=np.uint8), [], {"ax": np.array([0])}
    cases = list(itertools.product((-9, -5, 0, 2, 9), (-99, -6, -5, -1, 0, 3, 99, *FAR), (-1, -2, 1, 3)))
    for i, numbers in enumerate(cases):
        names = [f"{kind}{i}" for kind in ("a", "e", "s")]
        constants |= dict(zip(names, ([np.array([number]) for number in numbers]), strict=True))
        nodes.append(helper.make_node("Slice", ["x", *names[:2], "ax", names[2]], [f"y{i}"]))
    all_equal(any_device, many(nodes, constants, x, [f"y{i}" for i in range(len(cases))]), x)


CROPS = [(3, -3), (-3, 3), (-4, 3), (3, -4), (-3, 6), (4, -2), (-1, 2), (5, -6), (-1, -1)]


def test_pads_that_cut_off_more_than_the_data(any_device: vkq.Device) -> None:
    """Pad with a negative pad that crops more than the data also crops the padding at the other end, as in
    ONNX Runtime."""
    for x in (np.array([1, 2], np.uint8), np.arange(6, dtype=np.uint8).reshape(2, 3)):
        nodes, constants = [], {"v": np.uint8(9)}
        for i, (before, after) in enumerate(CROPS):
            rest = [1] * (x.ndim - 1)
            constants[f"p{i}"] = np.array([before, *rest, after, *rest])
            nodes.append(helper.make_node("Pad", ["x", f"p{i}", "v"], [f"y{i}"]))
        all_equal(any_device, many(nodes, constants, x, [f"y{i}" for i in range(len(CROPS))]), x)


@pytest.mark.parametrize(
    ("mode", "pads", "why"),
    [
        ("constant", [-2, -1], "crop more elements than"),
        ("edge", [-3, 3], "leave nothing"),
        ("wrap", [4, -2], "leave"),
    ],
)
def test_pads_that_no_data_allows_name_their_node(
    any_device: vkq.Device, mode: str, pads: list[int], why: str
) -> None:
    x = np.array([1, 2], np.uint8)
    node = helper.make_node("Pad", ["x", "p"], ["y"], name="margin", mode=mode)
    data = model([node], {"x": x}, {"p": np.array(pads)}, "uint8", 21)
    with pytest.raises(vkq.ModelError, match=f"margin.*{why}"):
        vkq.onnx.InferenceSession(data, any_device).run(None, {"x": x})


@pytest.mark.parametrize("auto", ["NOTSET", "SAME_LOWER", "SAME_UPPER"])
@pytest.mark.parametrize("size", [(4, 9), (5, 10)])
def test_the_odd_padding_of_an_output_shape(device: vkq.Device, auto: str, size: tuple[int, int]) -> None:
    """In a ConvTranspose with output_shape, an odd total padding has its extra element at the start, except
    with SAME_UPPER."""
    x = bytes_of((1, 2, 2, 5), "uint8")
    constants = q("x", 0.05, 100, "uint8") | {
        "w": bytes_of((2, 3, 3, 2), "int8", 1), "ws": np.float32(0.01), "wz": np.int8(0),
    }  # fmt: skip
    weight = helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["k"])
    node = helper.make_node(
        "ConvTranspose", ["a", "k"], ["b"], output_shape=size, strides=[2, 2], auto_pad=auto
    )
    check(device, model([weight, *around(node)], {"x": x}, constants, "uint8"), {"x": x})


def test_sixteen_bit_activations_keep_their_weights(any_device: vkq.Device) -> None:
    """In the fallback, layers with 16-bit activations keep their float weights, also weights from a
    DequantizeLinear. (One of ONNX Runtime's optimizers would quantize the weights per tensor.)"""
    rng = np.random.default_rng(0)
    x, scales = rng.standard_normal((1, 3, 8, 8)).astype(np.float32), np.array([1e-3, 1e-4, 5e-3, 3e-5])
    constants = {
        "w": bytes_of((4, 3, 3, 3), "int8"), "ws": scales.astype(np.float32), "s": np.float32(2**-13),
        "z": np.uint16(32767), "y": np.float32(3e-4),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], axis=0),
        helper.make_node("Conv", ["xd", "wd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "y", "z"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "y", "z"], ["r"]),
    ]
    graph = onnx.helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("r", 1, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    exact = _convolved(x, constants)
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with pytest.warns(FallbackWarning):
        (got,) = session.run(None, {"x": x})
    (beside,) = cpu_session(data, "test").run(None, {"x": x})
    for each in (got, beside):
        # half a quantization step of y, and float32 rounding
        assert np.abs(each - exact).max() <= constants["y"] * 0.51


def _convolved(x: np.ndarray, c: dict[str, Any]) -> np.ndarray:
    """Return, in float64, the convolution of x quantized to 16 bits."""
    step = float(c["s"])
    seen = (np.clip(np.rint(x / np.float32(step)) + 32767, 0, 65535) - 32767) * step
    weight = c["w"].astype(np.float64) * c["ws"].astype(np.float64).reshape(-1, 1, 1, 1)
    windows = np.lib.stride_tricks.sliding_window_view(seen, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight)


@pytest.mark.parametrize("given", [True, False])
def test_integer_products_of_any_length(any_device: vkq.Device, given: bool) -> None:
    """MatMulInteger sums modulo 2**32 for any K: sums of at least 33,026 products 255 * 255 exceed int32."""
    k = 33100
    a, b = np.full((2, k), 255, np.uint8), np.full((k, 3), 255, np.uint8)
    a[1], b[:, 1] = bytes_of((k,), "uint8"), bytes_of((k,), "uint8", 1)
    inputs, constants = ({"a": a, "b": b}, {}) if given else ({"a": a}, {"b": b})
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    data = model([node], inputs, constants, "int32")
    (got,) = vkq.onnx.InferenceSession(data, any_device).run(None, inputs)
    want = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    assert want.min() < 0
    np.testing.assert_array_equal(got, want)


def test_quantized_products_of_any_length(any_device: vkq.Device) -> None:
    a, b = np.full((1, 33100), 255, np.uint8), np.full((33100, 2), 255, np.uint8)
    b[:, 1] = bytes_of((33100,), "uint8")
    constants = {name: np.float32(1) for name in ("as", "bs")} | {"ys": np.float32(2**24)}
    constants |= {"az": np.uint8(0), "bz": np.uint8(0), "yz": np.uint8(128)}
    node = helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])
    feed = {"a": a, "b": b}
    (got,) = vkq.onnx.InferenceSession(model([node], feed, constants, "uint8"), any_device).run(None, feed)
    sums = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    np.testing.assert_array_equal(got, np.rint(sums / 2**24) + 128)
    assert sums[0, 0] < 0 < sums[0, 1]


@pytest.mark.parametrize(
    ("op", "options"),
    [("QLinearGlobalAveragePool", {}), ("QLinearAveragePool", {"kernel_shape": [2, 3], "strides": [1, 2]})],
)
def test_channels_last(device: vkq.Device, op: str, options: dict[str, Any]) -> None:
    x = bytes_of((2, 5, 6, 7), "uint8")
    constants = q("x", 0.04, 100, "uint8") | q("y", 0.05, 90, "uint8")
    inputs = ["x", "xs", "xz", "ys", "yz"]
    node = helper.make_node(op, inputs, ["y"], domain=MICROSOFT, channels_last=1, **options)
    check(device, model([node], {"x": x}, constants, "uint8"), {"x": x})


BATCHED = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])  # dtype of the constant b
@pytest.mark.parametrize("columns", [1, 7])  # one scale for each matrix, or one for each column
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 6, 5)])  # in the second case a is one matrix
def test_scales_of_each_matrix_of_a_batch(
    any_device: vkq.Device, shape: tuple[int, ...], columns: int, dtype: str
) -> None:
    a, rng = bytes_of(shape, "uint8"), np.random.default_rng(0)
    constants = q("a", 0.02, 100, "uint8") | q("y", 0.05, 120, "uint8") | {
        "b": bytes_of((2, 5, 7), dtype, 1),
        "bs": rng.uniform(1e-3, 1e-2, (2, 1, columns)).astype(np.float32),
        "bz": rng.integers(0, 9, (2, 1, columns)).astype(dtype),
    }  # fmt: skip
    data = model([helper.make_node("QLinearMatMul", BATCHED, ["y"])], {"a": a}, constants, "uint8", 21)
    session = vkq.onnx.InferenceSession(data, any_device)
    want = [
        np.rint(np.float32((a[min(k, len(a) - 1)].astype(int) - 100) @ (m.astype(int) - z))
                * (np.float32(0.02) * s / np.float32(0.05))) + 120
        for k, (m, s, z) in enumerate(zip(*(constants[n] for n in ("b", "bs", "bz")), strict=True))
    ]  # fmt: skip
    np.testing.assert_array_equal(session.run(None, {"a": a})[0], np.clip(want, 0, 255))
    if (shape[0], columns) == (2, 7):  # ONNX Runtime supports only this case
        np.testing.assert_array_equal(
            session.run(None, {"a": a})[0], cpu_session(data, "x").run(None, {"a": a})[0]
        )


def test_scales_of_the_rows_of_each_matrix_go_to_the_fallback(any_device: vkq.Device) -> None:
    a = bytes_of((2, 3, 5), "uint8")
    constants = q("a", 0.02, 100, "uint8") | q("b", 0.01, 0, "int8") | q("y", 0.05, 120, "uint8") | {
        "as": np.full((2, 3, 1), 0.02, np.float32), "az": np.full((2, 3, 1), 100, np.uint8),
        "b": bytes_of((2, 5, 7), "int8", 1),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", BATCHED, ["y"], name="each")
    data = model([node], {"a": a}, constants, "uint8", 21)
    with pytest.raises(vkq.UnsupportedModelError, match="each matrix of its batch has scales"):
        vkq.onnx.InferenceSession(data, any_device)


def test_a_scale_that_is_none_is_named(any_device: vkq.Device) -> None:
    """The error for an invalid scale names its channel and the remedy."""
    x = np.zeros((2, 3), np.float32)
    scales = np.array([0.1, 1e-42, 0.2], np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], axis=1),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=1),
    ]
    data = model(nodes, {"x": x}, {"s": scales}, "float32")
    with pytest.raises(
        vkq.UnsupportedModelError, match=r"its scale of channel 1 is 1.* at least 2.*store 1.0"
    ):
        vkq.onnx.InferenceSession(data, any_device)


def test_a_dead_node_may_be_anything(any_device: vkq.Device) -> None:
    x = np.array([[1, -2, 3]], np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("MatMul", ["x", "x"], ["dead"]),
        helper.make_node("Reshape", ["dead", "s"], ["deader"]),
    ]
    session = vkq.onnx.InferenceSession(
        model(nodes, {"x": x}, {"s": np.array([5, 7])}, "float32"), any_device
    )
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))


def test_scales_of_rows_of_square_matrices(any_device: vkq.Device) -> None:
    """Scales of a and y with one element per row apply to rows, as in ONNX, also if there are as many
    columns as rows."""
    a, b = bytes_of((4, 4), "uint8"), bytes_of((4, 4), "uint8", 1)
    scales, points = np.array([0.1, 0.2, 0.4, 0.8], np.float32), np.array([3, 120, 200, 90], np.uint8)
    constants = {
        "as": scales, "az": points, "b": b, "bs": scales / 8, "bz": points[::-1].copy(), "ys": scales * 16,
        "yz": points,
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])
    session = vkq.onnx.InferenceSession(
        model([node], {"a": a}, constants, "uint8"), any_device, fallback="onnxruntime"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        (got,) = session.run(None, {"a": a})
    real = (a - points.astype(float)[:, None]) * scales[:, None]
    real = real @ ((b - points[::-1].astype(float)) * (scales / 8))
    want = np.clip(np.rint(real / (scales[:, None] * 16)) + points[:, None], 0, 255)
    np.testing.assert_array_equal(got, want)


def test_a_float_bias_is_told(any_device: vkq.Device) -> None:
    """A float bias, as PT2E writes it, is rounded to a multiple of the sum's scale, and `explain` reports
    this. An int32 bias is used unchanged."""
    rng = np.random.default_rng(2)
    x = rng.normal(0, 1, (1, 3, 5, 6)).astype(np.float32)
    constants = q("x", 0.02, 131, "uint8") | q("y", 0.05, 123, "uint8")
    constants |= {"w": rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8), "ws": np.float32(0.01)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    whole = {"bq": np.int32([7, -900, 0, 41]), "bs": np.float32(np.float32(0.02) * np.float32(0.01))}
    given = helper.make_node("DequantizeLinear", ["bq", "bs"], ["b"])
    real = {"b": np.float32([0.1, -0.37, 0, 2.5])}
    for data, told in (
        (many(nodes, constants | real, x, ["y"]), True),
        (many([given, *nodes], constants | whole, x, ["y"]), False),
    ):
        session = vkq.onnx.InferenceSession(data, any_device)
        assert ("its float bias is rounded" in str(session.explain())) == told
        (got,), (want,) = session.run(None, {"x": x}), onnxruntime_results(data, {"x": x})
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", [(5, 4), (9,)], ids=["image", "line"])
@pytest.mark.parametrize("strides", [1, 3])
def test_averages_of_the_image(any_device: vkq.Device, size: tuple[int, ...], strides: int) -> None:
    """Average pools whose kernel has the image's size give ONNX Runtime's bytes. ONNX Runtime has a
    separate formula for this case, which differs at ties."""
    x = bytes_of((2, 300, *size), "uint8")
    how = {"kernel_shape": size, "strides": [strides] * len(size)}
    constants = q("x", 1 / 16, 128, "uint8") | q("y", 1 / 60, 83, "uint8")
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node("AveragePool", ["a"], ["b"], **how),
        helper.make_node("QuantizeLinear", ["b", "ys", "yz"], ["y"]),
    ]
    data = model(nodes, {"x": x}, constants, "uint8")
    session = vkq.onnx.InferenceSession(data, any_device)
    (got,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(got, onnxruntime_results(data, {"x": x})[0])
    assert "global_avg_pool2d" in {row.operator for row in session.explain().rows}
