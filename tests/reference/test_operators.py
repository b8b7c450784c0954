"""The reference of the element-wise, pooling, resize and table operators against ONNX Runtime, byte for
byte."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from vkq import QParams
from vkq.errors import ArgumentError
from vkq.numerics.elementwise import BinaryOp, binary, fused_multiply_add
from vkq.numerics.qparams import QDType
from vkq.numerics.tables import leaky_relu, table_of
from vkq.problem.window import Window
from vkq.reference import operators as reference_ops

from ..referees import node_tests, ort_ops

DTYPES: list[QDType] = ["int8", "uint8"]


def _point(rng: np.random.Generator, dtype: QDType) -> int:
    info = np.iinfo(dtype)
    return int(rng.choice([info.min, info.max, 0, int(rng.integers(info.min, info.max + 1))]))


def _all(dtype: QDType) -> Any:
    info = np.iinfo(dtype)
    return np.arange(info.min, info.max + 1).astype(dtype)


def _binary_qparams(rng: np.random.Generator, dtype: QDType, op: str) -> list[QParams]:
    """Scales whose ratios are simple fractions, so that many results lie near a tie."""
    y = float(10 ** rng.uniform(-2, 0))
    a, b = (y * int(rng.integers(1, 64)) / int(rng.choice([10, 14, 30, 100, 64])) for _ in range(2))
    return [QParams(s, _point(rng, dtype), dtype) for s in ((a, b, y) if op == "add" else (a, b / y / 20, y))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["add", "mul"])
def test_binary_equals_onnxruntime_for_every_pair_of_bytes(op: BinaryOp, dtype: QDType) -> None:
    rng = np.random.default_rng(1)
    values = _all(dtype)
    grid = [np.ascontiguousarray(v) for v in np.meshgrid(values, values)]
    forms = {
        "arrays": grid,
        "b scalar": [values[None], values[:, None]],
        "a scalar": [values[:, None], values[None]],
    }
    ties = 0
    for _ in range(25):
        a, b, y = _binary_qparams(rng, dtype, op)
        for form, (xa, xb) in forms.items():
            inputs = [xa, *ort_ops.parameters(a), xb, *ort_ops.parameters(b), *ort_ops.parameters(y)]
            want = ort_ops.run(f"QLinear{op.capitalize()}", inputs, dtype)
            np.testing.assert_array_equal(binary(op, xa, xb, a, b, y), want, err_msg=f"{form} {a} {b} {y}")
        swapped = binary(op, grid[1], grid[0], b, a, y)
        ties += int((swapped != binary(op, *grid, a, b, y)).sum())
    assert (ties > 0) == (op == "add")  # the order of the sum does decide results, and these scales show it


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((), ()),
        ((1,), (1,)),
        ((), (4, 1)),
        ((4, 1), ()),
        ((5, 1), (1,)),
        ((2, 5, 3, 1), (5, 1, 1)),
        ((5, 1, 1), (2, 5, 3, 4)),
        ((3, 1, 4), (3, 6, 4)),
        ((6, 1), (1, 7)),
        ((1, 1), (7,)),
        ((2, 3, 1, 1), (2, 1, 1, 1)),
        ((2, 3, 1, 5), (2, 3, 4, 5)),
    ],
)
def test_add_swaps_where_onnxruntime_does(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    for _ in range(60):
        qa, qb, qy = (QParams(v.scale, 0, "int8") for v in _binary_qparams(rng, "int8", "add"))
        xa, xb = (rng.integers(-128, 128, shape).astype(np.int8) for shape in (a, b))
        inputs = [xa, *ort_ops.parameters(qa), xb, *ort_ops.parameters(qb), *ort_ops.parameters(qy)]
        np.testing.assert_array_equal(
            binary("add", xa, xb, qa, qb, qy), ort_ops.run("QLinearAdd", inputs, "int8")
        )


def test_fused_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=4000).astype(np.float32) for _ in range(2))
    c = (-a.astype(np.float64) * b * (1 + rng.choice([0, 2.0**-24, 2.0**-40, 0.3, 2.0**30], 4000))).astype(
        np.float32
    )
    got = fused_multiply_add(a, b, c)
    for x, y, z, r in zip(a.tolist(), b.tolist(), c.tolist(), got, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        gap = abs(Fraction(float(r)) - exact)
        for side in (-np.inf, np.inf):
            assert gap <= abs(Fraction(float(np.nextafter(r, np.float32(side)))) - exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_of_functions_equal_onnxruntime(dtype: QDType) -> None:
    rng = np.random.default_rng(4)
    info, values = np.iinfo(dtype), _all(dtype)
    off_by_one = 0
    for _ in range(60):
        x, y = (QParams(float(10 ** rng.uniform(-3, 0)), _point(rng, dtype), dtype) for _ in range(2))
        inputs = [values, *ort_ops.parameters(x), *ort_ops.parameters(y)]
        alpha = float(np.float32(rng.uniform(0.01, 0.5)))
        want = ort_ops.run("QLinearLeakyRelu", inputs, dtype, alpha=alpha)
        np.testing.assert_array_equal(table_of(leaky_relu(alpha), x, y), want)
        y = QParams(1 / 256, info.min, dtype)
        inputs = [values, *ort_ops.parameters(x), *ort_ops.parameters(y)]
        want = ort_ops.run("QLinearSigmoid", inputs, dtype).astype(int)
        difference = np.abs(table_of("sigmoid", x, y).astype(int) - want)
        assert difference.max() <= 1  # ONNX Runtime approximates exp; the table is correctly rounded
        off_by_one += int(difference.sum())
    assert off_by_one <= 20, off_by_one  # of 15,360


@pytest.mark.parametrize("name", ["relu", "tanh", "hardswish", "identity", "abs", "neg", "exp"])
def test_table_is_the_three_onnx_operators(name: str) -> None:
    x, y = QParams(0.04, -3), QParams(0.03, 5)
    operator = {"identity": "Identity", "hardswish": "HardSwish"}.get(name, name.capitalize())
    real = ort_ops.run("DequantizeLinear", [_all("int8"), *ort_ops.parameters(x)], "float32")
    want = ort_ops.run(
        "QuantizeLinear", [ort_ops.run(operator, [real], "float32"), *ort_ops.parameters(y)], "int8"
    )
    difference = np.abs(table_of(name, x, y).astype(int) - want)
    assert difference.max() <= (1 if name in ("tanh", "exp", "hardswish") else 0)
    assert np.count_nonzero(difference) <= 2


def _random_window(rng: np.random.Generator, dilate: bool) -> Window:
    """Any window that fits: images down to one pixel, strides beyond the kernel, asymmetric padding, ceil
    mode."""
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
        np.testing.assert_array_equal(reference_ops.max_pool2d(x, window), want, err_msg=str(window))


def test_max_pool_passes_the_onnx_node_test() -> None:
    case = node_tests.load("test_maxpool_2d_uint8")
    window = Window.of("max_pool2d", case.inputs[0].shape, **_pytorch_names(case.attributes))
    np.testing.assert_array_equal(reference_ops.max_pool2d(case.inputs[0], window), case.outputs[0])


def _pytorch_names(attributes: dict[str, Any]) -> dict[str, Any]:
    """Of an ONNX pooling node."""
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
    """Where the scales are equal, a mean of four is a tie in a quarter of the cases."""
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
        got = reference_ops.avg_pool2d(x, window, xq, yq, include)
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
        np.testing.assert_array_equal(reference_ops.global_avg_pool(x, xq, yq), want)
